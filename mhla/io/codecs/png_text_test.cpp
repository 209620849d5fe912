// Texts in PNG files: what is written is read, what no PNG can hold is refused, damage is an Error.
#include "mhla/io/codecs/png_text.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/io/codecs/image_fixture.h"

namespace mhla {
namespace {

const ImageText kText = {
    {"prompt", "a small house, \"red\"\nsecond line"}, {"seed", "42"}, {"Title", "Größe 5 × 5, 雪"}, {"empty", ""}};

TEST(PngText, WhatIsWrittenIsRead) {
  const Image image = noise_image(5, 7, 3, 1);
  const Bytes bytes = encode_png(image, kText);
  EXPECT_EQ(decode_png_text(bytes, "test"), kText);
  EXPECT_EQ(decoded(bytes), image);
  EXPECT_EQ(decode_png_text(encode_png(image), "test"), ImageText{});
}

TEST(PngText, WhatIsRefused) {
  const Image image = smooth_image(2, 2, 1);
  const std::string key = "expected 1 to 79 ASCII characters", value = "is not UTF-8 without zero bytes";
  for (const auto& [text, reason] : {std::pair{ImageText{{"", "x"}}, key},
                                     {ImageText{{std::string(80, 'k'), "x"}}, key},
                                     {ImageText{{"größe", "x"}}, key},
                                     {ImageText{{" k", "x"}}, key},
                                     {ImageText{{"k", "\xff"}}, value},
                                     {ImageText{{"k", std::string("a\0b", 3)}}, value},
                                     {ImageText(61, {"k", "v"}), std::string("61 texts")}}) {
    const ImageText& given = text;
    EXPECT_TRUE(has(message_of([&] { encode_png(image, given); }), reason));
  }
}

TEST(PngText, Damage) {
  const Bytes whole = encode_png(noise_image(3, 3, 3, 2), kText);
  for (std::size_t size = 0; size < 60; ++size)
    EXPECT_TRUE(has(message_of([&] { decode_png_text(std::span(whole).first(size), "cut"); }), "cut: damaged PNG"));
  for (std::size_t i = 0; i < whole.size(); ++i) {  // refused, or read: never anything else
    Bytes changed = whole;
    changed[i] ^= std::byte{0x20};
    try {
      (void)decode_png_text(changed, "changed");
    } catch (const Error& error) {
      EXPECT_TRUE(has(error.what(), "changed: ")) << error.what();
    }
  }
}

TEST(PngText, WholeFiles) {
  const Bytes whole = encode_png(noise_image(5, 4, 3, 3), kText);
  EXPECT_TRUE(is_whole_png(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(is_whole_png(std::span(whole).first(size)));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    Bytes changed = whole;
    changed[i] ^= std::byte{0x20};
    EXPECT_FALSE(is_whole_png(changed)) << "byte " << i;
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(is_whole_png(longer));
}

}  // namespace
}  // namespace mhla
