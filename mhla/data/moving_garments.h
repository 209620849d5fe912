// Moving garments: a garment of Fashion-MNIST in one of six colours moves straight over one of four grounds, in one of
// eight directions at one of two speeds, and bounces off the walls. A clip with its caption is made from its number:
// nothing is stored, and there is no end. Garments of the test clips are those of Fashion-MNIST's test set.
//   a color3 class7 moves dir2 fast on a ground1
#pragma once

#include <array>
#include <optional>

#include "mhla/data/video_set.h"

namespace mhla {

inline constexpr std::int64_t kGarmentClips = std::int64_t{1} << 20;  // what an epoch is, for want of an end

// What a caption says: class, colour, direction, speed and ground, in the order of the judges.
struct GarmentAttributes {
  static constexpr std::size_t kCount = 5;
  static constexpr std::array<const char*, kCount> kNames{"class", "colour", "direction", "speed", "ground"};
  static constexpr std::array<std::int64_t, kCount> kValues{10, 6, 8, 2, 4};
  std::array<std::int64_t, kCount> values{};
  bool operator==(const GarmentAttributes&) const = default;

  [[nodiscard]] std::string caption() const;
};
// Of a caption of this set; none of another text.
std::optional<GarmentAttributes> garment_attributes(const std::string& caption);

// All words of captions; the first stands for no caption.
std::vector<std::string> garment_words();

// Red, green and blue from 0 to 1.
std::array<double, 3> garment_ground(std::int64_t ground);

// One clip before it is painted.
struct GarmentScene {
  std::int64_t garment = 0;  // in its set
  GarmentAttributes attributes;
  std::array<double, 2> start{};  // row and column of the centre, in pixels
};
// Rows and columns of the centre in every frame.
std::vector<std::array<double, 2>> garment_track(const GarmentScene& scene, const ClipShape& shape);
// [3, frames, rows, columns], -1 to 1: the image, 28 x 28, bilinear, over 0.44 of the shorter side.
void paint_garment(const GarmentScene& scene, const Image& garment, const ClipShape& shape, float* out);

// `images`: fashion-mnist, or fashion-mnist:FOLDER.
VideoSetPtr moving_garments(const std::string& images, Split split, const ClipShape& shape, std::uint64_t seed = 0);

}  // namespace mhla
