// Files of images for tests: little-endian bytes, images of a palette, and what damage may do.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "mhla/io/codecs/codecs_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {

using Bytes = std::vector<std::byte>;

inline Image decoded(const Bytes& bytes) {
  Image image;
  decode_image(bytes, "test", image);
  return image;
}

inline std::string refused(const Bytes& bytes, const ImageLimits& limits = {}) {
  return message_of([&] {
    Image image;
    decode_image(bytes, "some/file", image, limits);
  });
}

inline void add(Bytes& bytes, std::uint64_t value, int size) {  // little-endian
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(i < 8 ? value >> (8 * i) & 255 : 0));
}

inline void add(Bytes& bytes, std::string_view text) {
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
}

// Colours of a palette, and the image of indices that all palette formats keep exactly.
inline std::uint8_t entry(int index, int channel) {
  return static_cast<std::uint8_t>(channel == 0 ? index * 16 + 3 : channel == 1 ? 255 - index * 9 : index * 5);
}
inline int index_at(int y, int x, int bits) { return (y * 7919 + x * 104729 + y * x % 31) % (1 << bits); }

inline Image palette_image(int height, int width, int bits) {
  Image image;
  image.resize(height, width, 3);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c) image.row(y)[3 * x + c] = entry(index_at(y, x, bits), c);
  return image;
}

// Every prefix is an Error or the whole image, where what is missing has no pixels; every bent file an Error or an
// image.
inline void expect_no_harm(const Bytes& whole, const std::string& damage, std::uint64_t seed) {
  const Image image = decoded(whole);
  int errors = 0;
  for (std::size_t size = 12; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const std::string message = refused(cut);
    if (message == "nothing was thrown") {
      ASSERT_EQ(decoded(cut), image) << size << " of " << whole.size();
    } else {
      ASSERT_TRUE(has(message, "some/file: " + damage)) << size << " of " << whole.size() << ": " << message;
      ++errors;
    }
  }
  EXPECT_GT(errors, static_cast<int>(whole.size()) / 2);
  Random random(seed);
  for (int round = 0; round < 2000; ++round) {
    Bytes bent = whole;
    for (int i = 0; i < 3; ++i)
      bent[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(bent.size())))] =
          static_cast<std::byte>(random.below(256));
    const std::string message = refused(bent, {.max_pixels = 1 << 16});
    ASSERT_TRUE(message == "nothing was thrown" || has(message, "some/file: ")) << message;
  }
}

inline void expect_limits(const Bytes& whole) {  // of 30 x 40 pixels
  EXPECT_TRUE(has(refused(whole, {.max_pixels = 1199}), "some/file: 30 x 40 pixels, expected 1 to 1199"));
  EXPECT_TRUE(has(refused(whole, {.max_bytes = 20}), "more than the 20"));
  EXPECT_EQ(refused(whole, {.max_pixels = 1200}), "nothing was thrown");
}

}  // namespace mhla
