// PNG through libpng.
#include <png.h>

#include <algorithm>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/codecs/attempt.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {
namespace {

[[noreturn]] void give_up(png_structp png, png_const_charp reason) {
  auto& trouble = *static_cast<Trouble*>(png_get_error_ptr(png));
  std::strncpy(trouble.message.data(), reason, trouble.message.size() - 1);
  trouble.jump();
}

void say_nothing(png_structp /*png*/, png_const_charp /*warning*/) {}

struct Source {
  std::span<const std::byte> left;
};

void take_bytes(png_structp png, png_bytep out, png_size_t count) {
  auto& source = *static_cast<Source*>(png_get_io_ptr(png));
  if (count > source.left.size()) png_error(png, "the file ends too early");
  std::memcpy(out, source.left.data(), count);
  source.left = source.left.subspan(count);
}

void give_bytes(png_structp png, png_bytep in, png_size_t count) {
  auto& out = *static_cast<std::vector<std::byte>*>(png_get_io_ptr(png));
  const auto* begin = reinterpret_cast<const std::byte*>(in);
  bool full = false;
  try {
    out.insert(out.end(), begin, begin + count);
  } catch (...) {  // no exception may cross libpng
    full = true;
  }
  if (full) png_error(png, "out of memory");
}

class Decompress {
 public:
  explicit Decompress(const std::string& label) : label_(label) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &trouble_, give_up, say_nothing);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ != nullptr) return;
    png_destroy_read_struct(&png_, &info_, nullptr);
    fail(label_, ": libpng could not start");
  }
  ~Decompress() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Decompress(const Decompress&) = delete;
  Decompress& operator=(const Decompress&) = delete;

  template <class Work>
  void run(const Work& work) {
    if (!attempt(trouble_, work)) fail(label_, ": damaged PNG: ", trouble_.message.data());
  }
  [[nodiscard]] png_structp png() const { return png_; }
  [[nodiscard]] png_infop info() const { return info_; }

 private:
  const std::string& label_;
  Trouble trouble_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

void decode_png(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  Decompress decompress(label);
  png_structp png = decompress.png();
  png_infop info = decompress.info();
  Source source{bytes};
  decompress.run([&] {
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_image_size() decides
    png_set_chunk_malloc_max(png, static_cast<png_alloc_size_t>(std::min<std::uint64_t>(limits.max_memory, 8u << 20)));
    png_set_chunk_cache_max(png, 64);
    png_set_read_fn(png, &source, take_bytes);
    png_read_info(png, info);
  });
  check_image_size(png_get_image_height(png, info), png_get_image_width(png, info), label, limits);
  const int color = png_get_color_type(png, info);
  const bool grey = (color & PNG_COLOR_MASK_COLOR) == 0;
  decompress.run([&] {
    png_set_expand(png);  // palettes to RGB, few bits to 8, transparency to alpha
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
  });
  image.resize(static_cast<int>(png_get_image_height(png, info)), static_cast<int>(png_get_image_width(png, info)),
               grey ? 1 : 3);
  const std::size_t row_bytes = png_get_rowbytes(png, info);
  if (row_bytes != static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.channels))
    fail(label, ": PNG of colour type ", color, " gives rows of ", row_bytes, " bytes");
  std::vector<png_bytep> rows(static_cast<std::size_t>(image.height));
  for (int y = 0; y < image.height; ++y) rows[static_cast<std::size_t>(y)] = image.row(y);
  decompress.run([&] {
    png_read_image(png, rows.data());
    png_read_end(png, nullptr);
  });
}

std::vector<std::byte> encode_png(const Image& image) {
  check_encodable(image, "encode_png");
  struct Compress {
    Trouble trouble;
    png_structp png = nullptr;
    png_infop info = nullptr;
    ~Compress() { png_destroy_write_struct(&png, &info); }
  } job;
  std::vector<std::byte> bytes;
  job.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &job.trouble, give_up, say_nothing);
  if (job.png != nullptr) job.info = png_create_info_struct(job.png);
  if (job.info == nullptr) fail("encode_png: libpng could not start");
  const bool written = attempt(job.trouble, [&] {
    png_set_write_fn(job.png, &bytes, give_bytes, nullptr);
    png_set_IHDR(job.png, job.info, static_cast<png_uint_32>(image.width), static_cast<png_uint_32>(image.height), 8,
                 image.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(job.png, job.info);
    for (int y = 0; y < image.height; ++y) png_write_row(job.png, image.row(y));
    png_write_end(job.png, nullptr);
  });
  if (!written) fail("encode_png: ", job.trouble.message.data());
  return bytes;
}

}  // namespace mhla
