// Images made for the tests of the program: IDX files as Fashion-MNIST has them.
#pragma once

#include <cstdint>
#include <string>

#include "mhla/io/file.h"

namespace mhla {

inline std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

// IDX files of 28 x 28 images of ten classes, a bright band each; `missing` bytes are cut off at the end.
inline void write_idx(const std::string& folder, const std::string& name, std::uint32_t count,
                      std::size_t missing = 0) {
  std::string images = big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28);
  std::string labels = big_endian(0x801) + big_endian(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    labels += static_cast<char>(i % 10);
    for (std::uint32_t p = 0; p < 784; ++p) {
      const bool bright = p / 78 == i % 10;  // a band per class
      images += static_cast<char>((i * 31 + p * 17) % 90 + (bright ? 150 : 0));
    }
  }
  images.resize(images.size() - missing);
  write_file(folder + "/" + name + "-images-idx3-ubyte", images);
  write_file(folder + "/" + name + "-labels-idx1-ubyte", labels);
}

}  // namespace mhla
