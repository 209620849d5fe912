// Images made for the tests of the program: folders of PNG files, one for each class.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mhla/io/codecs/image.h"
#include "mhla/io/file.h"

namespace mhla {

// `count` colour images of 28 x 28 for each class; `junk` is what a file holds instead of an image.
inline void write_class_folders(const std::string& folder, const std::vector<std::string>& classes, int count,
                                const std::string& junk = "") {
  for (std::size_t c = 0; c < classes.size(); ++c) {
    std::filesystem::create_directories(folder + "/" + classes[c]);
    for (int i = 0; i < count; ++i) {
      Image image;
      image.resize(28, 28, 3);
      for (std::size_t p = 0; p < image.pixels.size(); ++p)
        image.pixels[p] = static_cast<std::uint8_t>(static_cast<std::size_t>(i) * 31 + p * 17 + 100 * c);
      const std::string path = folder + "/" + classes[c] + "/" + std::to_string(i) + ".png";
      if (junk.empty()) write_file(path, encode_png(image));
      if (!junk.empty()) write_file(path, junk);
    }
  }
}

}  // namespace mhla
