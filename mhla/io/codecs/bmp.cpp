// BMP, read here: every head since OS/2 and Windows 3, 1, 4 and 8 bits with a palette, 16, 24 and 32 bits with or
// without masks, rows from below or from above. Runs (RLE) are refused by name. The fourth byte of 32 bits is dropped
// like any alpha.
#include <array>
#include <bit>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {
namespace {

constexpr std::uint32_t kFileHead = 14, kCoreHead = 12, kInfoHead = 40;

// Numbers in a file are little-endian; all that are read lie inside it.
class Source {
 public:
  Source(std::span<const std::byte> bytes, const std::string& label) : bytes_(bytes), label_(label) {}
  [[nodiscard]] std::uint32_t number(std::uint64_t at, int size) const {
    std::uint32_t value = 0;
    const std::span<const std::byte> part = take(at, static_cast<std::uint64_t>(size));
    for (int i = size - 1; i >= 0; --i)
      value = value << 8 | std::to_integer<std::uint32_t>(part[static_cast<std::size_t>(i)]);
    return value;
  }
  [[nodiscard]] std::span<const std::byte> take(std::uint64_t at, std::uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) damaged("the file ends too early");
    return bytes_.subspan(at, size);
  }
  template <class... Parts>
  [[noreturn]] void damaged(const Parts&... parts) const {
    fail(label_, ": damaged BMP: ", parts...);
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& label_;
};

struct Head {
  std::uint32_t pixels_at = 0, size = 0, height = 0, width = 0, bits = 0, compression = 0, colours = 0;
  bool from_above = false;
};

Head read_head(const Source& file, const std::string& label) {
  Head head;
  head.pixels_at = file.number(10, 4);
  head.size = file.number(kFileHead, 4);
  if (head.size == kCoreHead) {
    head.width = file.number(18, 2), head.height = file.number(20, 2), head.bits = file.number(24, 2);
    return head;
  }
  if (head.size < kInfoHead || head.size > 256)
    file.damaged("a head of ", head.size, " bytes, expected 12 or 40 to 256");
  (void)file.take(kFileHead, head.size);
  head.width = file.number(18, 4), head.height = file.number(22, 4), head.bits = file.number(28, 2);
  head.compression = file.number(30, 4), head.colours = file.number(46, 4);
  head.from_above = (head.height & 0x80000000u) != 0;
  if (head.from_above) head.height = 0u - head.height;
  switch (head.compression) {
    case 0: break;
    case 1:
    case 2: fail(label, ": BMP of runs (RLE), which is not read here, expected one without compression");
    case 3:
    case 6:
      if (head.bits == 16 || head.bits == 32) break;
      file.damaged("masks with ", head.bits, " bits, expected 16 or 32");
    default: fail(label, ": BMP of compression ", head.compression, ", expected one without");
  }
  return head;
}

// The bits of one colour in a pixel of 16 or 32.
struct Mask {
  std::uint32_t mask = 0;
  int shift = 0;
  std::uint64_t top = 1;

  explicit Mask(std::uint32_t bits) : mask(bits), shift(std::countr_zero(bits)), top(bits == 0 ? 1 : bits >> shift) {}
  [[nodiscard]] std::uint8_t of(std::uint32_t pixel) const {
    if (mask == 0) return 0;
    const std::uint64_t value = (pixel & mask) >> shift;
    return static_cast<std::uint8_t>((value * 255 + top / 2) / top);
  }
};

std::array<Mask, 3> masks_of(const Source& file, const Head& head) {
  if (head.compression == 0 && head.bits == 16) return {Mask(0x7c00), Mask(0x03e0), Mask(0x001f)};
  if (head.compression == 0) return {Mask(0xff0000), Mask(0xff00), Mask(0xff)};
  const std::uint64_t at = kFileHead + kInfoHead;  // behind a short head, inside a long one
  std::array<Mask, 3> masks{Mask(file.number(at, 4)), Mask(file.number(at + 4, 4)), Mask(file.number(at + 8, 4))};
  for (const Mask& mask : masks)
    if ((mask.top & (mask.top + 1)) != 0) file.damaged("a mask with holes");
  return masks;
}

void read_palette_rows(const Source& file, const Head& head, std::uint64_t row_bytes, Image& image) {
  const std::uint32_t most = 1u << head.bits, entry = head.size == kCoreHead ? 3 : 4;
  const std::uint32_t colours = head.colours == 0 ? most : head.colours;
  if (colours > most) file.damaged("a palette of ", colours, " colours for ", head.bits, " bits");
  const std::span<const std::byte> palette =
      file.take(std::uint64_t{kFileHead} + head.size, std::uint64_t{colours} * entry);
  for (int y = 0; y < image.height; ++y) {
    const auto row = static_cast<std::uint64_t>(head.from_above ? y : image.height - 1 - y);
    const std::span<const std::byte> packed = file.take(head.pixels_at + row * row_bytes, row_bytes);
    std::uint8_t* out = image.row(y);
    for (std::uint32_t x = 0; x < head.width; ++x) {
      const std::uint32_t bit = x * head.bits;
      const std::uint32_t index =
          std::to_integer<std::uint32_t>(packed[bit / 8]) >> (8 - head.bits - bit % 8) & (most - 1);
      if (index >= colours) file.damaged("colour ", index, " of a palette of ", colours);
      for (std::uint32_t c = 0; c < 3; ++c)
        *out++ = std::to_integer<std::uint8_t>(palette[std::size_t{index} * entry + 2 - c]);
    }
  }
}

void read_colour_rows(const Source& file, const Head& head, std::uint64_t row_bytes, Image& image) {
  const std::array<Mask, 3> masks = masks_of(file, head);
  const std::uint32_t pixel_bytes = head.bits / 8;
  for (int y = 0; y < image.height; ++y) {
    const auto row = static_cast<std::uint64_t>(head.from_above ? y : image.height - 1 - y);
    const std::span<const std::byte> packed = file.take(head.pixels_at + row * row_bytes, row_bytes);
    std::uint8_t* out = image.row(y);
    for (std::uint32_t x = 0; x < head.width; ++x) {
      std::uint32_t pixel = 0;
      for (std::uint32_t i = 0; i < pixel_bytes; ++i)
        pixel |= std::to_integer<std::uint32_t>(packed[std::size_t{x} * pixel_bytes + i]) << (8 * i);
      for (const Mask& mask : masks) *out++ = mask.of(pixel);
    }
  }
}

}  // namespace

void decode_bmp(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  const Source file(bytes, label);
  const Head head = read_head(file, label);
  check_image_size(head.height, head.width, label, limits);
  const std::uint64_t row_bytes = (std::uint64_t{head.width} * head.bits + 31) / 32 * 4;
  switch (head.bits) {
    case 1:
    case 4:
    case 8:
    case 16:
    case 24:
    case 32: break;
    default: fail(label, ": BMP of ", head.bits, " bits a pixel, expected 1, 4, 8, 16, 24 or 32");
  }
  (void)file.take(head.pixels_at, row_bytes * head.height);  // before memory is asked for
  image.resize(static_cast<int>(head.height), static_cast<int>(head.width), 3);
  if (head.bits <= 8) return read_palette_rows(file, head, row_bytes, image);
  read_colour_rows(file, head, row_bytes, image);
}

}  // namespace mhla
