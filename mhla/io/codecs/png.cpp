// PNG through libpng: pixels, and the texts beside them.
#include <png.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/io/codecs/attempt.h"
#include "mhla/io/codecs/image_checks.h"
#include "mhla/io/codecs/png_text.h"
#include "mhla/io/codecs/zip_records.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

[[noreturn]] void give_up(png_structp png, png_const_charp reason) {
  auto& trouble = *static_cast<Trouble*>(png_get_error_ptr(png));
  std::strncpy(trouble.message.data(), reason, trouble.message.size() - 1);
  trouble.jump();
}

void say_nothing(png_structp /*png*/, png_const_charp /*warning*/) {}

struct PngSource {
  std::span<const std::byte> left;
};

void take_bytes(png_structp png, png_bytep out, png_size_t count) {
  auto& source = *static_cast<PngSource*>(png_get_io_ptr(png));
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

class PngDecompress {
 public:
  explicit PngDecompress(const std::string& label) : label_(label) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &trouble_, give_up, say_nothing);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ != nullptr) return;
    png_destroy_read_struct(&png_, &info_, nullptr);
    fail(label_, ": libpng could not start");
  }
  ~PngDecompress() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecompress(const PngDecompress&) = delete;
  PngDecompress& operator=(const PngDecompress&) = delete;

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

// Reads up to the first pixels. Texts may come many to a file: 64 chunks of 8 MiB at most.
void read_head(PngDecompress& decompress, PngSource& source, const ImageLimits& limits) {
  png_structp png = decompress.png();
  decompress.run([&] {
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_image_size() decides
    png_set_chunk_malloc_max(png, static_cast<png_alloc_size_t>(std::min<std::uint64_t>(limits.max_memory, 8u << 20)));
    png_set_chunk_cache_max(png, 64);
    png_set_read_fn(png, &source, take_bytes);
    png_read_info(png, decompress.info());
  });
}

constexpr std::size_t kMaxTexts = 60;

void check_text(const ImageText& text) {
  if (text.size() > kMaxTexts) fail("encode_png: ", text.size(), " texts, expected at most ", kMaxTexts);
  for (const auto& [key, value] : text) {
    const bool plain = std::all_of(key.begin(), key.end(), [](char c) { return c >= ' ' && c < 127; });
    if (key.empty() || key.size() > 79 || !plain || key.front() == ' ' || key.back() == ' ' ||
        key.find("  ") != std::string::npos)
      fail("encode_png: a key of ", key.size(), " bytes, expected 1 to 79 ASCII characters without spaces at its ends");
    if (!is_utf8(value) || value.find('\0') != std::string::npos || value.size() > (1u << 20))
      fail("encode_png: the text of '", key, "' is not UTF-8 without zero bytes of at most 1 MiB");
  }
}

// tEXt for ASCII, iTXt for the rest of Unicode. The result points into `text`.
std::vector<png_text> text_chunks(const ImageText& text) {
  static char none[] = "";
  std::vector<png_text> chunks;
  for (const auto& [key, value] : text) {
    png_text chunk{};
    const bool ascii = std::all_of(value.begin(), value.end(), [](char c) { return static_cast<signed char>(c) > 0; });
    chunk.compression = ascii ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
    chunk.key = const_cast<char*>(key.c_str());
    chunk.text = const_cast<char*>(value.c_str());
    if (!ascii) chunk.lang = chunk.lang_key = none;
    (ascii ? chunk.text_length : chunk.itxt_length) = value.size();
    chunks.push_back(chunk);
  }
  return chunks;
}

// tEXt and zTXt are Latin-1.
std::string utf8_of_latin1(const char* text, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < size; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80)
      out += static_cast<char>(c);
    else
      out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
  }
  return out;
}

}  // namespace

ImageText decode_png_text(std::span<const std::byte> bytes, const std::string& label, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  PngDecompress decompress(label);
  PngSource source{bytes};
  read_head(decompress, source, limits);
  png_textp chunks = nullptr;
  int count = 0;
  decompress.run([&] { png_get_text(decompress.png(), decompress.info(), &chunks, &count); });
  ImageText text;
  for (int i = 0; i < count; ++i) {
    const png_text& chunk = chunks[i];
    const bool unicode = chunk.compression >= PNG_ITXT_COMPRESSION_NONE;
    const std::size_t size = unicode ? chunk.itxt_length : chunk.text_length;
    const char* value = chunk.text != nullptr ? chunk.text : "";
    std::string key = utf8_of_latin1(chunk.key, std::strlen(chunk.key));
    if (!unicode) {
      text.emplace_back(std::move(key), utf8_of_latin1(value, size));
      continue;
    }
    if (!is_utf8({value, size})) fail(label, ": damaged PNG: the text of '", key, "' is not UTF-8");
    text.emplace_back(std::move(key), std::string(value, size));
  }
  return text;
}

bool is_whole_png(std::span<const std::byte> bytes) {
  constexpr std::string_view kSignature("\x89PNG\r\n\x1a\n", 8);
  constexpr std::size_t kBeside = 12;  // of a part: size of its data, four letters, the data, checksum of the last two
  const auto text = [&](std::size_t at, std::size_t size) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()) + at, size);
  };
  const auto number = [&](std::size_t at) { return png_get_uint_32(reinterpret_cast<png_const_bytep>(&bytes[at])); };
  if (bytes.size() < kSignature.size() || text(0, kSignature.size()) != kSignature) return false;
  for (std::size_t at = kSignature.size(); bytes.size() - at >= kBeside;) {
    const std::size_t size = number(at), end = at + kBeside + size;
    if (end > bytes.size() || zip_checksum(0, bytes.subspan(at + 4, size + 4)) != number(end - 4)) return false;
    if (text(at + 4, 4) == "IEND") return end == bytes.size();
    at = end;
  }
  return false;
}

void decode_png(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits) {
  check_image_file(bytes.size(), label, limits);
  PngDecompress decompress(label);
  png_structp png = decompress.png();
  png_infop info = decompress.info();
  PngSource source{bytes};
  read_head(decompress, source, limits);
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

std::vector<std::byte> encode_png(const Image& image, const ImageText& text) {
  check_encodable(image, "encode_png");
  check_text(text);
  const std::vector<png_text> chunks = text_chunks(text);
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
    if (!chunks.empty()) png_set_text(job.png, job.info, chunks.data(), static_cast<int>(chunks.size()));
    png_write_info(job.png, job.info);
    for (int y = 0; y < image.height; ++y) png_write_row(job.png, image.row(y));
    png_write_end(job.png, nullptr);
  });
  if (!written) fail("encode_png: ", job.trouble.message.data());
  return bytes;
}

std::vector<std::byte> encode_png(const Image& image) { return encode_png(image, {}); }

}  // namespace mhla
