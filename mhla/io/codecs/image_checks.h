// What the formats check before they decode or encode, and their decoders. Private to this room.
#pragma once

#include "mhla/io/codecs/image.h"

namespace mhla {

inline constexpr std::uint64_t kMaxImageSide = 65500;  // what JPEG can have

void check_image_file(std::size_t bytes, const std::string& label, const ImageLimits& limits);
void check_image_size(std::uint64_t height, std::uint64_t width, const std::string& label, const ImageLimits& limits);
void check_encodable(const Image& image, const char* caller);

void decode_jpeg(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits);
void decode_png(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits);
void decode_webp(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits);
void decode_bmp(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits);
void decode_gif(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits);
void decode_tiff(std::span<const std::byte> bytes, const std::string& label, Image& image, const ImageLimits& limits);

}  // namespace mhla
