#include "mhla/io/codecs/npy.h"

#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/io/file.h"

namespace mhla {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 1 << 16;

struct Descr {
  const char* text;
  DType dtype;
};
constexpr Descr kDescr[] = {{"|u1", DType::kU8},  {"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16},
                            {"|i1", DType::kI8},  {"<i2", DType::kI16}, {"<u2", DType::kU16}, {"<i4", DType::kI32},
                            {"<u4", DType::kU32}, {"<i8", DType::kI64}, {"<u8", DType::kU64}, {"|b1", DType::kBool}};

// The dictionary, read strictly: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Dictionary {
 public:
  Dictionary(std::string_view text, const std::string& label) : left_(text), label_(label) {}

  NpyHeader parse() {
    NpyHeader header;
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        header.dtype = dtype();
        descr = true;
      } else if (key == "fortran_order" && !order) {
        header.column_major = boolean();
        order = true;
      } else if (key == "shape" && !shape) {
        header.shape = tuple();
        shape = true;
      } else {
        refuse("a key that is unknown or there twice");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!left_.empty()) refuse("text after the dictionary");
    if (!descr || !order || !shape) refuse("no 'descr', 'fortran_order' or 'shape'");
    return header;
  }

 private:
  [[noreturn]] void refuse(const char* what) const { fail(label_, ": damaged npy header: ", what); }
  void skip_space() {
    while (!left_.empty() && (left_.front() == ' ' || left_.front() == '\n')) left_.remove_prefix(1);
  }
  bool take(char c) {
    skip_space();
    if (left_.empty() || left_.front() != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse("not a dictionary as NumPy writes it");
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (left_.substr(0, word.size()) != word) return false;
    left_.remove_prefix(word.size());
    return true;
  }
  std::string_view quoted() {
    const char quote = take('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const std::size_t end = left_.find(quote);
    if (end == std::string_view::npos) refuse("a text without end");
    const std::string_view text = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return text;
  }
  DType dtype() {
    skip_space();
    if (!left_.empty() && left_.front() == '[') fail(label_, ": has records as elements, expected numbers");
    const std::string_view text = quoted();
    for (const Descr& one : kDescr) {
      if (text == one.text) return one.dtype;
    }
    if (text == "|O") fail(label_, ": has Python objects as elements, which are never unpickled: expected numbers");
    std::string shown;
    for (const char c : text.substr(0, 16)) shown += c >= ' ' && c < 127 ? c : '?';
    fail(label_, ": has elements of type '", shown, "', expected little-endian numbers such as '|u1' or '<f4'");
  }
  bool boolean() {
    if (take_word("True")) return true;
    if (!take_word("False")) refuse("'fortran_order' is neither True nor False");
    return false;
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> shape;
    expect('(');
    while (!take(')')) {
      if (shape.size() == kMaxRank) fail(label_, ": has more than ", kMaxRank, " axes");
      shape.push_back(number());
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }
  std::int64_t number() {
    skip_space();
    std::int64_t value = 0;
    std::size_t digits = 0;
    for (; digits < left_.size() && left_[digits] >= '0' && left_[digits] <= '9'; ++digits) {
      if (digits == 18) refuse("a size with too many digits");
      value = 10 * value + (left_[digits] - '0');
    }
    if (digits == 0) refuse("a size that is not a number");
    left_.remove_prefix(digits);
    if (!left_.empty() && left_.front() == 'L') left_.remove_prefix(1);  // Python 2
    return value;
  }

  std::string_view left_;
  const std::string& label_;
};

std::uint64_t little_endian(std::span<const std::byte> bytes, std::size_t at, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(bytes[at + i]);
  return value;
}

const char* descr_of(DType dtype) {
  for (const Descr& one : kDescr) {
    if (one.dtype == dtype) return one.text;
  }
  fail("npy: NumPy has no type for ", name_of(dtype));
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::uint64_t total, const std::string& label) {
  const std::size_t shown = std::min(bytes.size(), kMagic.size());
  if (bytes.size() < 10 || std::memcmp(bytes.data(), kMagic.data(), shown) != 0)
    fail(label, ": is not an npy array: it does not begin with \\x93NUMPY");
  const auto version = std::to_integer<int>(bytes[6]);
  if (version < 1 || version > 3) fail(label, ": is npy version ", version, ", expected 1 to 3");
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  if (bytes.size() < 8 + length_bytes) fail(label, ": damaged npy header: the file ends too early");
  const std::uint64_t length = little_endian(bytes, 8, length_bytes);
  if (length > kMaxHeader || 8 + length_bytes + length > bytes.size())
    fail(label, ": damaged npy header: its length is ", length);
  const std::size_t begin = 8 + length_bytes;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + begin, static_cast<std::size_t>(length));
  NpyHeader header = Dictionary(text, label).parse();
  header.size = begin + static_cast<std::size_t>(length);
  std::uint64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : header.shape) {
    if (size == 0) empty = true;
    if (size != 0 && count > (std::uint64_t{1} << 60) / static_cast<std::uint64_t>(size))
      fail(label, ": shape ", shape_text(header.shape), " is too large");
    if (size != 0) count *= static_cast<std::uint64_t>(size);
  }
  header.data_bytes = empty ? 0 : count * static_cast<std::uint64_t>(size_of(header.dtype));
  if (total < header.size || total - header.size != header.data_bytes)
    fail(label, ": has ", total - std::min<std::uint64_t>(total, header.size), " bytes of elements, expected ",
         header.data_bytes, " for ", name_of(header.dtype), " ", shape_text(header.shape));
  return header;
}

std::vector<std::byte> npy_header(DType dtype, const std::vector<std::int64_t>& shape) {
  std::string text = str("{'descr': '", descr_of(dtype), "', 'fortran_order': False, 'shape': (");
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += str(i == 0 ? "" : " ", shape[i], i + 1 < shape.size() ? "," : "");
  text += shape.size() == 1 ? ",), }" : "), }";
  const std::size_t padded = (10 + text.size() + 1 + 63) / 64 * 64;
  text.resize(padded - 10 - 1, ' ');
  text += '\n';
  std::string all(kMagic);
  all += '\x01';
  all += '\0';
  all += static_cast<char>(text.size() & 0xff);
  all += static_cast<char>(text.size() >> 8);
  all += text;
  const auto* begin = reinterpret_cast<const std::byte*>(all.data());
  return {begin, begin + all.size()};
}

NpyArray npy_array(std::span<const std::byte> bytes, const std::string& label) {
  const NpyHeader header = parse_npy_header(bytes, bytes.size(), label);
  NpyArray array;
  const std::byte* data = bytes.data() + header.size;
  const auto element = static_cast<std::uintptr_t>(size_of(header.dtype));
  if (reinterpret_cast<std::uintptr_t>(data) % element != 0 && header.data_bytes > 0) {
    const std::shared_ptr<std::byte[]> copy(new std::byte[header.data_bytes]);
    std::memcpy(copy.get(), data, header.data_bytes);
    data = copy.get();
    array.memory = copy;
  }
  const std::vector<std::int64_t> shape = header.shape.empty() ? std::vector<std::int64_t>{1} : header.shape;
  array.view = ConstView(data, header.dtype, shape);
  if (header.column_major) {
    std::int64_t step = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      array.view.stride[i] = step;
      step *= shape[i];
    }
  }
  return array;
}

NpyArray read_npy(const std::filesystem::path& path) {
  const auto file = std::make_shared<MappedFile>(path);
  NpyArray array = npy_array(file->bytes(), path.string());
  if (array.memory == nullptr) array.memory = file;
  return array;
}

void write_npy(const std::filesystem::path& path, const ConstView& array) {
  if (!array.contiguous()) fail("write_npy: array of shape ", shape_text(array), " is strided, expected contiguous");
  const std::vector<std::int64_t> shape(array.shape.begin(), array.shape.begin() + array.rank);
  AtomicFile file(path);
  file.write(npy_header(array.dtype, shape));
  file.write(
      {static_cast<const std::byte*>(array.data), static_cast<std::size_t>(array.numel() * size_of(array.dtype))});
  file.commit();
}

}  // namespace mhla
