// Crops, rounding and grids against what Pillow, torchvision and diffusers made, and what is refused.
#include "mhla/data/image_output.h"

#include <cmath>

#include "mhla/core/run_failed.h"
#include "mhla/data/adm_crop.h"
#include "mhla/data/data_fixture.h"
#include "mhla/data/images_recorded.h"
#include "mhla/io/recorded_arrays_fixture.h"

namespace mhla {
namespace {

TEST(ImagesRecorded, BitForBit) {
  for (const char* name : {"center_crop_0", "center_crop_1", "center_crop_2", "to_uint8", "grid"})
    expect_recorded_arrays("images", name, images_recorded(), 0.0);
}

TEST(ImagesRecorded, RefusesWhatIsNoImage) {
  RecordedArraysCase c;
  c.config = parse_json(R"({"size": 4})", "case");
  c.arrays["in.image"] = {{1, 1, 3}, {0, 1, 256}};
  EXPECT_EQ(message_of([&] { recompute(images_recorded(), "center_crop", c); }),
            "in.image has the value 256, expected bytes");
  c.arrays["in.image"] = {{1, 3}, {0, 1, 2}};
  EXPECT_TRUE(has(message_of([&] { recompute(images_recorded(), "center_crop", c); }), "[rows, columns, channels]"));
  c.arrays["in.image"] = {{1, 1, 2}, {0, 1}};
  EXPECT_TRUE(has(message_of([&] { recompute(images_recorded(), "center_crop", c); }), "expected 1 or 3 channels"));
  c.config = parse_json(R"({"size": 4, "filter": "box"})", "case");
  EXPECT_TRUE(has(message_of([&] { recompute(images_recorded(), "center_crop", c); }), "'filter' is no option"));
}

TEST(AdmCrop, SizesAtTheBorders) {
  for (const auto& [height, width] : {std::pair{1, 1}, {16, 16}, {17, 16}, {15, 40}, {31, 33}, {32, 200}}) {
    const Image crop = adm_crop(smooth_image(height, width, 3), 16);
    EXPECT_EQ(crop.height, 16) << height << " x " << width;
    EXPECT_EQ(crop.width, 16) << height << " x " << width;
  }
  const Image same = noise_image(16, 16, 1, 3);
  EXPECT_EQ(adm_crop(same, 16), same);
  EXPECT_TRUE(has(message_of([&] { adm_crop(same, 0); }), "size is 0, expected 1"));
}

TEST(ToU8, RoundsHalvesToEven) {
  // 255 (x / 2 + 0.5) at n + 0.5 exactly, n even: diffusers rounds down.
  int halves = 0;
  for (int n = 128; n < 254; n += 2) {
    const float place = (static_cast<float>(n) + 0.5f) / 255.0f, x = 2.0f * place - 1.0f;
    if ((x / 2.0f + 0.5f) * 255.0f != static_cast<float>(n) + 0.5f) continue;
    std::uint8_t level = 0;
    to_u8(std::span(&x, 1), ToU8::kDiffusers, &level);
    EXPECT_EQ(level, n);
    ++halves;
  }
  EXPECT_GT(halves, 10);
  const std::vector<float> wrong = {0.0f, std::nanf("")};
  std::uint8_t out[2];
  EXPECT_THROW(to_u8(wrong, ToU8::kAdm, out), RunFailed);
  EXPECT_TRUE(has(message_of([] { to_u8_called("round"); }), "expected one of adm, save_image, diffusers"));
}

TEST(ToU8, PlanesBecomePixels) {
  const std::vector<float> planes = {-1, 1, 0, 0, 1, -1};  // red, green, blue of two pixels
  const Image image = to_image(planes, 3, 1, 2);
  EXPECT_EQ(image.pixels, (std::vector<std::uint8_t>{0, 128, 255, 255, 128, 0}));
  EXPECT_TRUE(has(message_of([&] { to_image(planes, 3, 2, 2); }), "6 values, expected 3 x 2 x 2"));
}

TEST(ImageGrid, SizesAndRefusals) {
  std::vector<Image> images{noise_image(5, 6, 3, 1), noise_image(5, 6, 3, 2)};
  EXPECT_EQ(image_grid(images, 8, 1).width, 2 * 7 + 1);
  images.push_back(noise_image(5, 7, 3, 1));
  EXPECT_TRUE(has(message_of([&] { image_grid(images); }), "an image is 5 x 7 x 3, expected 5 x 6 x 3"));
}

}  // namespace
}  // namespace mhla
