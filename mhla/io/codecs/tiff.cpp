// The first image of a TIFF through libtiff. Grey, RGB and palettes of 1 to 16 bits are read sample by sample, so that
// they come out as PNG's do; for the rest (YCbCr, CMYK, CIELab, LogLuv) libtiff makes RGB. Alpha is dropped. The
// orientation tag is ignored, as that of JPEG files is.
#ifdef MHLA_TIFF
#include <tiffio.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {
namespace {

constexpr std::uint16_t kMaxSamples = 16;  // a pixel; each is decoded, read or not

// A file in memory, and what libtiff says about it. What it says about tags while it opens a file is nothing to us; a
// warning while pixels are decoded means that some were made up.
class TiffDecompress {
 public:
  TiffDecompress(std::span<const std::byte> bytes, const std::string& label, const ImageLimits& limits)
      : label_(label), bytes_(bytes) {
    const std::unique_ptr<TIFFOpenOptions, void (*)(TIFFOpenOptions*)> options(TIFFOpenOptionsAlloc(),
                                                                               TIFFOpenOptionsFree);
    if (!options) fail(label_, ": libtiff could not start");
    TIFFOpenOptionsSetMaxSingleMemAlloc(options.get(), static_cast<tmsize_t>(limits.max_memory));
    TIFFOpenOptionsSetErrorHandlerExtR(options.get(), on_error, this);
    TIFFOpenOptionsSetWarningHandlerExtR(options.get(), on_warning, this);
    tiff_ = TIFFClientOpenExt("", "rm", this, read, write, seek, close, size, nullptr, nullptr, options.get());
    if (tiff_ == nullptr) damaged();
    message_[0] = 0;  // about tags: what matters of them is checked below
    decoding_ = true;
  }
  ~TiffDecompress() { TIFFClose(tiff_); }
  TiffDecompress(const TiffDecompress&) = delete;
  TiffDecompress& operator=(const TiffDecompress&) = delete;

  [[nodiscard]] TIFF* tiff() const { return tiff_; }
  void expect(bool good) const {
    if (!good || message_[0] != 0) damaged();
  }
  [[noreturn]] void damaged() const {
    fail(label_, ": damaged TIFF: ", message_[0] == 0 ? "libtiff could not read it" : message_.data());
  }
  template <class Value>
  [[nodiscard]] Value number(std::uint32_t tag, Value otherwise) const {
    Value value{};
    return TIFFGetFieldDefaulted(tiff_, tag, &value) == 1 ? value : otherwise;
  }

 private:
  static TiffDecompress& self(thandle_t handle) { return *static_cast<TiffDecompress*>(handle); }
  static tmsize_t read(thandle_t handle, void* out, tmsize_t count) {
    TiffDecompress& file = self(handle);
    const std::uint64_t left = file.at_ < file.bytes_.size() ? file.bytes_.size() - file.at_ : 0;
    const std::uint64_t taken = std::min(left, static_cast<std::uint64_t>(std::max<tmsize_t>(count, 0)));
    if (taken > 0) std::memcpy(out, file.bytes_.data() + file.at_, taken);
    file.at_ += taken;
    return static_cast<tmsize_t>(taken);
  }
  static tmsize_t write(thandle_t /*handle*/, void* /*data*/, tmsize_t /*count*/) { return 0; }
  static toff_t seek(thandle_t handle, toff_t offset, int whence) {
    TiffDecompress& file = self(handle);
    const std::uint64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? file.at_ : file.bytes_.size();
    return file.at_ = from + offset;
  }
  static int close(thandle_t /*handle*/) { return 0; }
  static toff_t size(thandle_t handle) { return self(handle).bytes_.size(); }
  static int on_error(TIFF* /*tiff*/, void* user, const char* /*module*/, const char* format, va_list values) {
    TiffDecompress& file = *static_cast<TiffDecompress*>(user);
    if (file.message_[0] == 0) std::vsnprintf(file.message_.data(), file.message_.size(), format, values);
    return 1;
  }
  static int on_warning(TIFF* tiff, void* user, const char* module, const char* format, va_list values) {
    return static_cast<TiffDecompress*>(user)->decoding_ ? on_error(tiff, user, module, format, values) : 1;
  }

  const std::string& label_;
  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
  std::array<char, 256> message_{};
  bool decoding_ = false;
  TIFF* tiff_ = nullptr;
};

struct Kind {
  std::uint16_t bits = 1, samples = 1, photometric = 0;
  bool planes = false;  // each sample in a plane of its own

  [[nodiscard]] bool grey() const {
    return photometric == PHOTOMETRIC_MINISBLACK || photometric == PHOTOMETRIC_MINISWHITE;
  }
  [[nodiscard]] bool palette() const { return photometric == PHOTOMETRIC_PALETTE; }
  [[nodiscard]] bool direct() const {
    return grey() || (palette() && bits <= 8) || (photometric == PHOTOMETRIC_RGB && samples >= 3);
  }
  [[nodiscard]] int used() const { return photometric == PHOTOMETRIC_RGB ? 3 : 1; }  // the rest is alpha and others
};

Kind kind_of(const TiffDecompress& file, const std::string& label) {
  Kind kind;
  kind.bits = file.number<std::uint16_t>(TIFFTAG_BITSPERSAMPLE, 1);
  kind.samples = file.number<std::uint16_t>(TIFFTAG_SAMPLESPERPIXEL, 1);
  kind.planes = file.number<std::uint16_t>(TIFFTAG_PLANARCONFIG, PLANARCONFIG_CONTIG) == PLANARCONFIG_SEPARATE;
  if (TIFFGetField(file.tiff(), TIFFTAG_PHOTOMETRIC, &kind.photometric) != 1)
    kind.photometric = kind.samples >= 3 ? PHOTOMETRIC_RGB : PHOTOMETRIC_MINISBLACK;
  const auto format = file.number<std::uint16_t>(TIFFTAG_SAMPLEFORMAT, SAMPLEFORMAT_UINT);
  if (format != SAMPLEFORMAT_UINT && format != SAMPLEFORMAT_VOID && kind.direct())
    fail(label, ": TIFF of ",
         format == SAMPLEFORMAT_INT      ? "signed"
         : format == SAMPLEFORMAT_IEEEFP ? "floating-point"
                                         : "complex",
         " samples, expected unsigned whole numbers");
  const bool known = kind.bits == 1 || kind.bits == 2 || kind.bits == 4 || kind.bits == 8 || kind.bits == 16;
  if (!known) fail(label, ": TIFF of ", kind.bits, " bits a sample, expected 1, 2, 4, 8 or 16");
  if (kind.samples < 1 || kind.samples > kMaxSamples)
    fail(label, ": TIFF of ", kind.samples, " samples a pixel, expected 1 to ", kMaxSamples);
  return kind;
}

// Samples of a row into pixels of the image.
class Rows {
 public:
  Rows(const TiffDecompress& file, const Kind& kind, Image& image) : kind_(kind), image_(image) {
    std::uint16_t *red = nullptr, *green = nullptr, *blue = nullptr;
    if (!kind.palette()) return;
    file.expect(TIFFGetField(file.tiff(), TIFFTAG_COLORMAP, &red, &green, &blue) == 1);
    const std::size_t count = std::size_t{1} << kind.bits;
    std::uint32_t all = 0;
    for (const auto* colours : {red, green, blue})
      for (std::size_t i = 0; i < count; ++i) all |= colours[i];
    const int shift = all < 256 ? 0 : 8;  // some writers give 8 bits where 16 are meant
    for (std::size_t i = 0; i < count; ++i)
      for (const auto* colours : {red, green, blue}) palette_.push_back(static_cast<std::uint8_t>(colours[i] >> shift));
  }

  void put(const std::uint8_t* packed, int plane, int y, int x0, int count) {
    const int step = kind_.planes ? 1 : kind_.samples, channels = kind_.planes ? 1 : kind_.used();
    std::uint8_t* out = image_.row(y) + std::ptrdiff_t{x0} * image_.channels;
    for (int x = 0; x < count; ++x, out += image_.channels)
      for (int c = 0; c < channels; ++c) {
        const unsigned value =
            sample(packed, static_cast<std::size_t>(x) * static_cast<std::size_t>(step) + static_cast<std::size_t>(c));
        if (kind_.palette()) {
          std::copy_n(palette_.begin() + std::ptrdiff_t{3} * value, 3, out);
        } else {
          const auto scaled = static_cast<std::uint8_t>(kind_.bits == 16 ? (value * 255 + 32895) >> 16
                                                                         : value * 255 / ((1u << kind_.bits) - 1));
          out[kind_.planes ? plane : c] =
              kind_.photometric == PHOTOMETRIC_MINISWHITE ? static_cast<std::uint8_t>(255 - scaled) : scaled;
        }
      }
  }

 private:
  [[nodiscard]] unsigned sample(const std::uint8_t* packed, std::size_t i) const {
    if (kind_.bits == 8) return packed[i];
    if (kind_.bits == 16) {
      std::uint16_t value = 0;
      std::memcpy(&value, packed + 2 * i, 2);  // in the order of this machine: libtiff has turned it
      return value;
    }
    const std::size_t bit = i * kind_.bits;
    return static_cast<unsigned>(packed[bit / 8]) >> (8 - kind_.bits - bit % 8) & ((1u << kind_.bits) - 1);
  }
  const Kind& kind_;
  Image& image_;
  std::vector<std::uint8_t> palette_;
};

std::vector<std::uint8_t> buffer_of(std::uint64_t size, const std::string& label, const ImageLimits& limits) {
  if (size == 0 || size > limits.max_memory)
    fail(label, ": TIFF whose rows or tiles take ", size, " bytes, expected 1 to ", limits.max_memory);
  return std::vector<std::uint8_t>(size);
}

void read_tiles(const TiffDecompress& file, const std::string& label, const Kind& kind, const ImageLimits& limits,
                Image& image) {
  const auto width = file.number<std::uint32_t>(TIFFTAG_TILEWIDTH, 0);
  const auto height = file.number<std::uint32_t>(TIFFTAG_TILELENGTH, 0);
  const auto padded = [](int side, std::uint64_t tile) {
    return (static_cast<std::uint64_t>(side) + tile - 1) / tile * tile;
  };
  // A tile larger than the image is decoded all the same.
  if (width == 0 || height == 0 || width > 4 * kMaxImageSide || height > 4 * kMaxImageSide ||
      padded(image.width, width) * padded(image.height, height) > 4 * limits.max_pixels)
    fail(label, ": TIFF of tiles of ", height, " x ", width, " pixels, too large for ", image.height, " x ",
         image.width);
  std::vector<std::uint8_t> tile = buffer_of(TIFFTileSize64(file.tiff()), label, limits);
  const std::uint64_t row_bytes = TIFFTileRowSize64(file.tiff());
  Rows rows(file, kind, image);
  for (int plane = 0; plane < (kind.planes ? kind.used() : 1); ++plane)
    for (int y = 0; y < image.height; y += static_cast<int>(height))
      for (int x = 0; x < image.width; x += static_cast<int>(width)) {
        const auto size = static_cast<tmsize_t>(tile.size());
        file.expect(TIFFReadTile(file.tiff(), tile.data(), static_cast<std::uint32_t>(x), static_cast<std::uint32_t>(y),
                                 0, static_cast<std::uint16_t>(plane)) == size);
        const int wide = std::min(static_cast<int>(width), image.width - x);
        const int high = std::min(static_cast<int>(height), image.height - y);
        for (int i = 0; i < high; ++i)
          rows.put(tile.data() + static_cast<std::uint64_t>(i) * row_bytes, plane, y + i, x, wide);
      }
}

void read_rows(const TiffDecompress& file, const std::string& label, const Kind& kind, const ImageLimits& limits,
               Image& image) {
  std::vector<std::uint8_t> packed = buffer_of(TIFFScanlineSize64(file.tiff()), label, limits);
  Rows rows(file, kind, image);
  for (int plane = 0; plane < (kind.planes ? kind.used() : 1); ++plane)
    for (int y = 0; y < image.height; ++y) {
      file.expect(TIFFReadScanline(file.tiff(), packed.data(), static_cast<std::uint32_t>(y),
                                   static_cast<std::uint16_t>(plane)) == 1);
      rows.put(packed.data(), plane, y, 0, image.width);
    }
}

void read_through_libtiff(const TiffDecompress& file, const std::string& label, const ImageLimits& limits,
                          Image& image) {
  char reason[1024] = {};
  if (TIFFRGBAImageOK(file.tiff(), reason) == 0) fail(label, ": TIFF that libtiff makes no RGB of: ", reason);
  const std::size_t pixels = static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width);
  if (pixels * 4 > limits.max_memory) fail(label, ": TIFF of ", pixels, " pixels, too many for its kind");
  std::vector<std::uint32_t> raster(pixels);
  TIFFRGBAImage work{};
  if (TIFFRGBAImageBegin(&work, file.tiff(), /*stop at errors=*/1, reason) != 1) file.damaged();
  const std::unique_ptr<TIFFRGBAImage, void (*)(TIFFRGBAImage*)> ended(&work, TIFFRGBAImageEnd);
  work.orientation = work.req_orientation = ORIENTATION_TOPLEFT;
  const int got = TIFFRGBAImageGet(&work, raster.data(), static_cast<std::uint32_t>(image.width),
                                   static_cast<std::uint32_t>(image.height));
  file.expect(got == 1);
  std::uint8_t* out = image.pixels.data();
  for (const std::uint32_t pixel : raster) {
    *out++ = static_cast<std::uint8_t>(TIFFGetR(pixel));
    *out++ = static_cast<std::uint8_t>(TIFFGetG(pixel));
    *out++ = static_cast<std::uint8_t>(TIFFGetB(pixel));
  }
}

}  // namespace

void decode_tiff(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  const TiffDecompress file(bytes, label, limits);
  const auto height = file.number<std::uint32_t>(TIFFTAG_IMAGELENGTH, 0);
  const auto width = file.number<std::uint32_t>(TIFFTAG_IMAGEWIDTH, 0);
  check_image_size(height, width, label, limits);
  const Kind kind = kind_of(file, label);
  image.resize(static_cast<int>(height), static_cast<int>(width), kind.grey() ? 1 : 3);
  if (!kind.direct()) return read_through_libtiff(file, label, limits, image);
  if (TIFFIsTiled(file.tiff()) != 0) return read_tiles(file, label, kind, limits, image);
  read_rows(file, label, kind, limits, image);
}

}  // namespace mhla
#endif
