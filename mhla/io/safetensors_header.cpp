#include "mhla/io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "mhla/core/error.h"
#include "mhla/core/view.h"
#include "mhla/io/json_events.h"

namespace mhla {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

constexpr std::size_t kMaxToken = std::size_t{2} << 20;     // longest name or metadata value
constexpr std::size_t kMaxMetadata = std::size_t{1} << 16;  // pairs, about 100 bytes each beside their text
constexpr std::string_view kMetadataKey = "__metadata__";

// Every token has one place where it may stand; what comes elsewhere is refused on sight, so depth, rank and memory
// stay bounded by what a header can honestly hold.
class HeaderEvents final : public JsonEvents {
 public:
  HeaderEvents(SafetensorsHeader& header, std::uint64_t data_size) : header_(header), data_size_(data_size) {}

  void null() override { wrong("null"); }
  void boolean(bool /*value*/) override { wrong("a boolean"); }
  void integer(std::int64_t value) override { wrong(str("the number ", value)); }
  void real(double value) override { wrong(str("the number ", value)); }

  void natural(std::uint64_t value) override {
    if (place_ == Place::kShape) {
      if (rank_ == kMaxRank) refuse("shape has more than ", kMaxRank, " sizes, the most that is supported");
      if (value > kMaxSize) refuse("shape has the size ", value, ", expected at most ", kMaxSize);
      shape_[rank_++] = static_cast<std::int64_t>(value);
    } else if (place_ == Place::kOffsets) {
      if (offset_count_ == 2) refuse("data_offsets has more than 2 numbers");
      offsets_[offset_count_++] = value;
    } else {
      wrong(str("the number ", value));
    }
  }

  void string(std::string_view text) override {
    if (place_ == Place::kDtype) {
      const std::optional<DType> dtype = safetensors_dtype(text);
      if (!dtype) refuse("dtype ", quoted_excerpt(text), " is not supported, expected one of ", supported());
      dtype_ = *dtype;
      place_ = Place::kFields;
    } else if (place_ == Place::kMetadataValue) {
      metadata_pair_->second.assign(text);
      place_ = Place::kMetadata;
    } else {
      wrong(str("the string ", quoted_excerpt(text)));
    }
  }

  void key(std::string_view text) override {
    if (place_ == Place::kTop && text == kMetadataKey) {
      if (has_metadata_) fail(header_.label, ": ", kMetadataKey, " appears twice");
      has_metadata_ = true;
      place_ = Place::kMetadataOpen;
    } else if (place_ == Place::kTop) {
      start_entry(text);
    } else if (place_ == Place::kMetadata) {
      const auto [where, is_new] = header_.metadata.try_emplace(std::string(text));
      if (!is_new) fail(header_.label, ": ", kMetadataKey, ": key ", quoted_excerpt(text), " appears twice");
      if (header_.metadata.size() > kMaxMetadata)
        fail(header_.label, ": ", kMetadataKey, " has more than ", kMaxMetadata, " keys, the most that is supported");
      metadata_pair_ = &*where;
      place_ = Place::kMetadataValue;
    } else {
      start_field(text);
    }
  }

  void begin_object() override {
    switch (place_) {
      case Place::kStart: place_ = Place::kTop; break;
      case Place::kEntryOpen: place_ = Place::kFields; break;
      case Place::kMetadataOpen: place_ = Place::kMetadata; break;
      default: wrong("an object");
    }
  }
  void end_object() override {
    if (place_ == Place::kFields) finish_entry();
    place_ = Place::kTop;
  }
  void begin_array() override {
    if (place_ == Place::kShapeOpen)
      place_ = Place::kShape;
    else if (place_ == Place::kOffsetsOpen)
      place_ = Place::kOffsets;
    else
      wrong("an array");
  }
  void end_array() override {
    if (place_ == Place::kOffsets && offset_count_ != 2)
      refuse("data_offsets has ", offset_count_, " numbers, expected 2");
    place_ = Place::kFields;
  }

 private:
  enum class Place : std::uint8_t {
    kStart,
    kTop,
    kEntryOpen,
    kFields,
    kDtype,
    kShapeOpen,
    kShape,
    kOffsetsOpen,
    kOffsets,
    kMetadataOpen,
    kMetadata,
    kMetadataValue
  };
  static constexpr std::uint64_t kMaxSize = 0x7fffffffffffffffu;
  static constexpr std::array<std::string_view, 3> kFieldNames{"dtype", "shape", "data_offsets"};

  [[nodiscard]] std::string_view name() const {
    return std::string_view(header_.text).substr(row_.name, row_.name_size);
  }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail(header_.label, ": tensor ", quoted_excerpt(name()), ": ", parts...);
  }
  [[noreturn]] void wrong(const std::string& found) const {
    switch (place_) {
      case Place::kEntryOpen: refuse("found ", found, ", expected an object with dtype, shape and data_offsets");
      case Place::kDtype: refuse("dtype: found ", found, ", expected a string");
      case Place::kShapeOpen: refuse("shape: found ", found, ", expected an array");
      case Place::kShape: refuse("shape: found ", found, ", expected a size");
      case Place::kOffsetsOpen: refuse("data_offsets: found ", found, ", expected an array");
      case Place::kOffsets: refuse("data_offsets: found ", found, ", expected an offset");
      case Place::kMetadataOpen: fail(header_.label, ": ", kMetadataKey, ": found ", found, ", expected an object");
      case Place::kMetadataValue:
        fail(header_.label, ": ", kMetadataKey, ": key ", quoted_excerpt(metadata_pair_->first), ": found ", found,
             ", expected a string");
      default: fail(header_.label, ": header byte ", at, ": found ", found, ", expected an object");
    }
  }
  static std::string supported() {
    std::string names;
    for (int i = 0; i <= static_cast<int>(DType::kBool); ++i)
      names.append(i > 0 ? ", " : "").append(safetensors_name(static_cast<DType>(i)));
    return names;
  }

  void start_entry(std::string_view decoded) {
    // The name is kept where it was read, decoded over its own escapes, which are never shorter: `at` is one past
    // the closing quote, so this memory has been read already.
    row_ = {};
    row_.name = static_cast<std::uint32_t>(at - 1 - decoded.size());
    row_.name_size = static_cast<std::uint32_t>(decoded.size());
    std::memcpy(header_.text.data() + row_.name, decoded.data(), decoded.size());
    if (header_.index.add(name(), [this](std::uint32_t row) { return header_.name_at(row); }) != NameIndex::kNone)
      refuse("appears twice in the header (second time at header byte ", at, ")");
    seen_ = rank_ = offset_count_ = 0;
    place_ = Place::kEntryOpen;
    // At once, since the index asks for the names of all rows it holds when it grows.
    header_.rows.push_back(row_);
  }

  void start_field(std::string_view text) {
    constexpr Place kNext[] = {Place::kDtype, Place::kShapeOpen, Place::kOffsetsOpen};
    for (std::size_t i = 0; i < kFieldNames.size(); ++i) {
      if (text != kFieldNames[i]) continue;
      if ((seen_ >> i & 1) != 0) refuse(text, " appears twice");
      seen_ |= 1 << i;
      place_ = kNext[i];
      return;
    }
    refuse("unknown key ", quoted_excerpt(text), ", expected dtype, shape and data_offsets");
  }

  void finish_entry() {
    for (std::size_t i = 0; i < kFieldNames.size(); ++i)
      if ((seen_ >> i & 1) == 0) refuse(kFieldNames[i], " is missing");
    const auto [begin, end] = offsets_;
    const std::vector<std::int64_t> shape(shape_.begin(), shape_.begin() + rank_);
    const auto shown = [&] { return str(safetensors_name(dtype_), " ", shape_text(shape)); };
    // Zeros are left out of the overflow check: [0, 2^62, 2^62] is refused like [2^62, 2^62], since no stride fits.
    std::int64_t bytes = size_of(dtype_);
    bool empty = false;
    for (const std::int64_t size : shape) {
      empty = empty || size == 0;
      if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes))
        refuse(shown(), ": the number of bytes does not fit 63 bits");
    }
    if (empty) bytes = 0;
    if (begin > end) refuse("data_offsets [", begin, ", ", end, "] run backwards");
    if (end > data_size_)
      refuse("data_offsets [", begin, ", ", end, "] end outside the data part of ", data_size_, " bytes");
    if (end - begin != static_cast<std::uint64_t>(bytes))
      refuse("data_offsets [", begin, ", ", end, "] hold ", end - begin, " bytes, ", shown(), " needs ", bytes);

    SafetensorsHeader::Row& row = header_.rows.back();
    row.begin = begin;
    row.dtype = dtype_;
    row.rank = static_cast<std::uint8_t>(rank_);
    row.shape = static_cast<std::uint32_t>(header_.sizes.size());
    for (std::int64_t size : shape) {
      for (; size >= 0x80; size >>= 7) header_.sizes.push_back(static_cast<std::uint8_t>(size | 0x80));
      header_.sizes.push_back(static_cast<std::uint8_t>(size));
    }
  }

  SafetensorsHeader& header_;
  std::uint64_t data_size_;
  Place place_ = Place::kStart;
  bool has_metadata_ = false;
  Metadata::value_type* metadata_pair_ = nullptr;
  // The entry being read.
  SafetensorsHeader::Row row_{};
  DType dtype_ = DType::kF32;
  std::array<std::int64_t, kMaxRank> shape_{};
  std::array<std::uint64_t, 2> offsets_{};
  int seen_ = 0;  // bit i: kFieldNames[i]
  int rank_ = 0;
  int offset_count_ = 0;
};

// In the order of their data, each tensor must start where the one before ended: no overlap, no hole, no rest.
void check_coverage(const SafetensorsHeader& header, std::uint64_t data_size) {
  const auto begin = [&](std::uint32_t row) { return header.rows[row].begin; };
  const auto end = [&](std::uint32_t row) {
    return header.rows[row].begin + static_cast<std::uint64_t>(header.bytes_at(row));
  };
  const auto count = static_cast<std::uint32_t>(header.rows.size());
  std::uint64_t covered = 0;
  std::uint32_t last = NameIndex::kNone;
  const auto next = [&](std::uint32_t row) {
    if (begin(row) > covered)
      fail(header.label, ": tensor ", quoted_excerpt(header.name_at(row)), ": starts at byte ", begin(row),
           " of the data, bytes ", covered, " to ", begin(row), " belong to no tensor");
    if (begin(row) < covered)
      fail(header.label, ": tensor ", quoted_excerpt(header.name_at(row)), ": starts at byte ", begin(row),
           " of the data, inside tensor ", quoted_excerpt(header.name_at(last)), ", which ends at ", covered);
    covered = end(row);
    last = row;
  };
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return begin(a) != begin(b) ? begin(a) < begin(b) : end(a) < end(b);  // an empty tensor before its neighbour
  };
  // Nearly every file is in order already, which saves the permutation.
  bool sorted = true;
  for (std::uint32_t row = 1; row < count && sorted; ++row) sorted = !before(row, row - 1);
  if (sorted) {
    for (std::uint32_t row = 0; row < count; ++row) next(row);
  } else {
    std::vector<std::uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), before);
    for (const std::uint32_t row : order) next(row);
  }
  if (covered != data_size)
    fail(header.label, ": the data part has ", data_size, " bytes, the tensors end at ", covered);
}

}  // namespace

std::int64_t SafetensorsHeader::bytes_at(std::uint32_t row) const {
  std::int64_t bytes = size_of(rows[row].dtype);
  each_size(row, [&](std::int64_t size) { bytes *= size; });
  return bytes;
}

Safetensors::Entry SafetensorsHeader::entry(std::uint32_t row) const {
  Safetensors::Entry entry;
  entry.name = name_at(row);
  entry.dtype = rows[row].dtype;
  entry.shape.reserve(rows[row].rank);
  each_size(row, [&](std::int64_t size) { entry.shape.push_back(size); });
  entry.offset = static_cast<std::int64_t>(rows[row].begin);
  entry.bytes = bytes_at(row);
  return entry;
}

SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::string& label) {
  constexpr std::uint64_t kLengthBytes = 8;
  if (file.size() < kLengthBytes)
    fail(label, ": truncated: ", file.size(), " bytes, expected at least the 8 of the header length");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeader) {
    const bool zip = (length & 0xffffffffU) == 0x04034b50U,
               pickle = (length & 0xffU) == 0x80U;  // "PK\3\4"; protocol 2 on
    if (zip || (pickle && (length >> 8 & 0xffU) <= 5))
      fail(label, ": is a ", zip ? "zip archive" : "pickle", ", as .pt and .ckpt files of PyTorch are, ",
           "expected safetensors: nothing is unpickled");
    fail(label, ": header length is ", length, " bytes, expected at most ", kMaxHeader);
  }
  if (length > file.size() - kLengthBytes)
    fail(label, ": truncated: header of ", length, " bytes in a file of ", file.size(), " bytes");
  const char* const text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  if (length == 0 || text[0] != '{') fail(label, ": header does not start with '{'");

  SafetensorsHeader header;
  header.label = label;
  header.text.assign(text, length);
  // The format pads with spaces; they need no parsing.
  const std::string_view document = std::string_view(header.text).substr(0, header.text.find_last_not_of(' ') + 1);
  if (document.back() != '}') fail(label, ": header does not end with '}' and spaces");
  const std::uint64_t data_size = file.size() - kLengthBytes - length;
  HeaderEvents events(header, data_size);
  walk_json(document, label + ": header", {.max_bytes = kMaxHeader, .max_depth = 8, .max_token = kMaxToken}, events);
  check_coverage(header, data_size);
  return header;
}

}  // namespace mhla
