// From the floats of a generative model, -1 to 1, to images: rounding as published samplers do it, and sheets of many.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mhla/io/codecs/image.h"

namespace mhla {

// They differ by one level in places, which shows in FID.
enum class ToU8 : std::uint8_t {
  kAdm,        // "adm": 127.5 x + 128, cut. ADM's and DiT's sample sets
  kSaveImage,  // "save_image": 255 (x + 1) / 2 + 0.5, cut. torchvision
  kDiffusers,  // "diffusers": 255 (x / 2 + 0.5), rounded, halves to even
};
ToU8 to_u8_called(const std::string& name);

// In f32 as the originals. A value that is NaN is RunFailed; others are clamped.
void to_u8(std::span<const float> values, ToU8 kind, std::uint8_t* out);

// A model's output [channels, height, width] as an image; 1 or 3 channels.
Image to_image(std::span<const float> planes, int channels, int height, int width, ToU8 kind = ToU8::kAdm);

// torchvision's make_grid: images of one size, `columns` in a row (fewer where there are fewer images), row by row,
// `padding` black pixels around each.
Image image_grid(std::span<const Image> images, int columns = 8, int padding = 2);

}  // namespace mhla
