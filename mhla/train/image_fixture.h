// Images for tests of trainings: their class can be seen.
#pragma once

#include <random>
#include <string>
#include <utility>

#include "mhla/data/image_set.h"

namespace mhla::train {

// Grey images of 12 x 12 with a bright quarter, which is the class, on noise.
inline ImageSetPtr quarters(const std::string& name, std::int64_t count, unsigned seed) {
  MemoryImages images;
  images.name = name;
  images.class_names = {"top left", "top right", "bottom left", "bottom right"};
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const int label = static_cast<int>(i % 4);
    Image image;
    image.height = image.width = 12, image.channels = 1;
    for (int y = 0; y < 12; ++y) {
      for (int x = 0; x < 12; ++x) {
        const bool bright = (y >= 6) == (label >= 2) && (x >= 6) == (label % 2 == 1);
        image.pixels.push_back(static_cast<std::uint8_t>(random() % 100 + (bright ? 120 : 0)));
      }
    }
    images.images.push_back(image);
    images.labels.push_back(label);
  }
  return images_in_memory(std::move(images));
}

}  // namespace mhla::train
