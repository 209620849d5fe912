// The formats of image files, in the order in which they are tried. A new one is a line here and a file of its own.
#include "mhla/core/error.h"
#include "mhla/io/codecs/image_checks.h"

namespace mhla {
namespace {

using Bytes = std::span<const std::byte>;

bool has_at(Bytes bytes, std::size_t at, std::string_view text) {
  if (bytes.size() < at + text.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (bytes[at + i] != static_cast<std::byte>(text[i])) return false;
  return true;
}

bool is_jpeg(Bytes bytes) { return has_at(bytes, 0, "\xff\xd8\xff"); }
bool is_png(Bytes bytes) { return has_at(bytes, 0, "\x89PNG"); }
bool is_webp(Bytes bytes) { return has_at(bytes, 0, "RIFF") && has_at(bytes, 8, "WEBP"); }
bool is_bmp(Bytes bytes) { return has_at(bytes, 0, "BM"); }
bool is_gif(Bytes bytes) { return has_at(bytes, 0, "GIF8"); }
bool is_tiff(Bytes bytes) {  // with 32-bit offsets, or 64 (BigTIFF)
  using std::literals::string_view_literals::operator""sv;
  return has_at(bytes, 0, "II*\0"sv) || has_at(bytes, 0, "MM\0*"sv) || has_at(bytes, 0, "II+\0"sv) ||
         has_at(bytes, 0, "MM\0+"sv);
}

#ifdef MHLA_WEBP
constexpr ImageDecoder kWebp = decode_webp;
#else
constexpr ImageDecoder kWebp = nullptr;
#endif
#ifdef MHLA_GIF
constexpr ImageDecoder kGif = decode_gif;
#else
constexpr ImageDecoder kGif = nullptr;
#endif
#ifdef MHLA_TIFF
constexpr ImageDecoder kTiff = decode_tiff;
#else
constexpr ImageDecoder kTiff = nullptr;
#endif

constexpr ImageFormat kFormats[] = {
    {"JPEG", {".jpg", ".jpeg"}, "libjpeg", is_jpeg, decode_jpeg},
    {"PNG", {".png", {}}, "libpng", is_png, decode_png},
    {"WebP", {".webp", {}}, "libwebp", is_webp, kWebp},
    {"BMP", {".bmp", {}}, "", is_bmp, decode_bmp},
    {"GIF", {".gif", {}}, "giflib", is_gif, kGif},
    {"TIFF", {".tif", ".tiff"}, "libtiff 4.5", is_tiff, kTiff},
};

std::string joined(const std::vector<std::string>& names, const char* last = " or ") {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == names.size() ? last : ", ", names[i]);
  return text;
}

}  // namespace

std::span<const ImageFormat> image_formats() { return kFormats; }

const ImageFormat* format_of_ending(std::string_view ending) {
  for (const ImageFormat& format : kFormats)
    for (const std::string_view known : format.endings)
      if (!known.empty() && known == ending) return &format;
  return nullptr;
}

std::string readable_formats(const char* last) {
  std::vector<std::string> names;
  for (const ImageFormat& format : kFormats)
    if (format.decode != nullptr) names.emplace_back(format.name);
  return joined(names, last);
}

std::string readable_endings() {
  std::vector<std::string> endings;
  for (const ImageFormat& format : kFormats)
    for (const std::string_view ending : format.endings)
      if (format.decode != nullptr && !ending.empty()) endings.emplace_back(ending);
  return joined(endings);
}

}  // namespace mhla
