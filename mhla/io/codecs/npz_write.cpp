#include "mhla/core/error.h"
#include "mhla/io/codecs/npz.h"
#include "mhla/io/codecs/zip_records.h"

namespace mhla {
namespace {

constexpr std::uint32_t kFull = 0xffffffffu;
constexpr std::uint16_t kDate = 1 << 5 | 1;  // 1 January 1980: equal arrays give equal files

class Record {
 public:
  Record& u16(std::uint64_t value) { return number(value, 2); }
  Record& u32(std::uint64_t value) { return number(value, 4); }
  Record& u64(std::uint64_t value) { return number(value, 8); }
  Record& text(const std::string& value) {
    for (const char c : value) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  Record& number(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i, value >>= 8) bytes_.push_back(static_cast<std::byte>(value & 0xff));
    return *this;
  }
  std::vector<std::byte> bytes_;
};

std::span<const std::byte> elements_of(const ConstView& array) {
  return {static_cast<const std::byte*>(array.data), static_cast<std::size_t>(array.numel() * size_of(array.dtype))};
}

}  // namespace

NpzWriter::NpzWriter(const std::filesystem::path& path, std::uint64_t zip64_from)
    : file_(path), zip64_from_(zip64_from) {}

void NpzWriter::put(std::span<const std::byte> bytes) {
  file_.write(bytes);
  at_ += bytes.size();
}

void NpzWriter::start_member(const std::string& name, std::uint64_t size, bool descriptor, std::uint32_t crc) {
  if (open_) fail("NpzWriter: '", name, "' begins while '", members_.back().name, "' is not complete");
  if (name.empty() || name.size() > 1024) fail("NpzWriter: name of ", name.size(), " bytes, expected 1 to 1024");
  for (const Member& member : members_) {
    if (member.name == name) fail("NpzWriter: array '", name, "' is there already");
  }
  members_.push_back({name, crc, size, at_, descriptor});
  const bool large = size >= zip64_from_;
  // A descriptor after the data holds checksum and sizes; until there they are 0.
  const std::uint64_t written = descriptor ? 0 : size;
  Record record;
  record.u32(kZipLocal).u16(large ? 45 : 20).u16(descriptor ? 8 : 0).u16(0).u16(0).u16(kDate);
  record.u32(descriptor ? 0 : crc).u32(large ? kFull : written).u32(large ? kFull : written);
  record.u16(name.size() + 4).u16(large ? 20 : 0).text(name + ".npy");
  if (large) record.u16(1).u16(16).u64(written).u64(written);
  put(record.bytes());
}

void NpzWriter::add(const std::string& name, const ConstView& array) {
  if (!array.contiguous())
    fail("NpzWriter: '", name, "' of shape ", shape_text(array), " is strided, expected contiguous");
  const std::vector<std::byte> header =
      npy_header(array.dtype, {array.shape.begin(), array.shape.begin() + array.rank});
  const std::span<const std::byte> elements = elements_of(array);
  start_member(name, header.size() + elements.size(), false, zip_checksum(zip_checksum(0, header), elements));
  put(header);
  put(elements);
}

void NpzWriter::begin(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape) {
  const std::vector<std::byte> header = npy_header(dtype, shape);
  std::uint64_t bytes = static_cast<std::uint64_t>(size_of(dtype));
  for (const std::int64_t size : shape)
    bytes = static_cast<std::uint64_t>(checked_product({static_cast<std::int64_t>(bytes), size}, "NpzWriter: array"));
  start_member(name, header.size() + bytes, true, 0);
  open_ = true;
  left_ = bytes;
  members_.back().crc = zip_checksum(0, header);
  put(header);
}

void NpzWriter::write(std::span<const std::byte> elements) {
  if (!open_) fail("NpzWriter: elements without an array that has begun");
  if (elements.size() > left_)
    fail("NpzWriter: '", members_.back().name, "' gets ", elements.size(), " bytes, expected at most ", left_);
  members_.back().crc = zip_checksum(members_.back().crc, elements);
  left_ -= elements.size();
  put(elements);
}

void NpzWriter::end() {
  if (!open_) fail("NpzWriter: the end of an array that has not begun");
  const Member& member = members_.back();
  if (left_ > 0) fail("NpzWriter: '", member.name, "' lacks ", left_, " bytes");
  Record record;
  record.u32(kZipDescriptor).u32(member.crc);
  if (member.size >= zip64_from_)
    record.u64(member.size).u64(member.size);
  else
    record.u32(member.size).u32(member.size);
  put(record.bytes());
  open_ = false;
}

void NpzWriter::commit() {
  if (open_) fail("NpzWriter: '", members_.back().name, "' is not complete");
  const std::uint64_t begin = at_;
  for (const Member& member : members_) {
    const bool large = member.size >= zip64_from_, far = member.header >= zip64_from_;
    Record record;
    record.u32(kZipEntry).u16(45).u16(large || far ? 45 : 20).u16(member.descriptor ? 8 : 0).u16(0).u16(0).u16(kDate);
    record.u32(member.crc).u32(large ? kFull : member.size).u32(large ? kFull : member.size);
    record.u16(member.name.size() + 4).u16(large || far ? 4 + (large ? 16 : 0) + (far ? 8 : 0) : 0).u16(0);
    record.u16(0).u16(0).u32(0).u32(far ? kFull : member.header).text(member.name + ".npy");
    if (large || far) record.u16(1).u16((large ? 16 : 0) + (far ? 8 : 0));
    if (large) record.u64(member.size).u64(member.size);
    if (far) record.u64(member.header);
    put(record.bytes());
  }
  const std::uint64_t size = at_ - begin, count = members_.size(), end = at_;
  const bool large = begin >= zip64_from_ || size >= zip64_from_ || count >= 0xffff;
  Record record;
  if (large) {
    record.u32(kZip64End).u64(44).u16(45).u16(45).u32(0).u32(0).u64(count).u64(count).u64(size).u64(begin);
    record.u32(kZip64Locator).u32(0).u64(end).u32(1);
  }
  record.u32(kZipEnd).u16(0).u16(0).u16(large ? 0xffff : count).u16(large ? 0xffff : count);
  record.u32(large ? kFull : size).u32(large ? kFull : begin).u16(0);
  put(record.bytes());
  file_.commit();
}

}  // namespace mhla
