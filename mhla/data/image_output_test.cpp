// Crops, rounding and grids against what Pillow, torchvision and diffusers made, and what is refused.
#include "mhla/data/image_output.h"

#include <cmath>
#include <cstring>

#include "mhla/core/run_failed.h"
#include "mhla/data/adm_crop.h"
#include "mhla/data/data_fixture.h"
#include "mhla/io/json.h"
#include "mhla/io/safetensors.h"

namespace mhla {
namespace {

const Safetensors& golden() {
  static const Safetensors file = Safetensors::read(MHLA_SOURCE_DIR "/tests/golden/image/images.safetensors");
  return file;
}

Image image_of(const std::string& name) {  // [height, width, channels]
  const ConstView view = golden().view(name);
  Image image;
  image.resize(static_cast<int>(view.shape[0]), static_cast<int>(view.shape[1]), static_cast<int>(view.shape[2]));
  std::memcpy(image.pixels.data(), view.data, image.pixels.size());
  return image;
}

Image image_of_planes(const std::uint8_t* planes, int channels, int height, int width) {
  Image image;
  image.resize(height, width, channels);
  const std::size_t plane = image.pixels.size() / static_cast<std::size_t>(channels);
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = planes[i % static_cast<std::size_t>(channels) * plane + i / static_cast<std::size_t>(channels)];
  return image;
}

TEST(AdmCrop, IsPillowsBitForBit) {
  for (const std::string name : {"center_crop_0", "center_crop_1", "center_crop_2"}) {
    const JsonValue options = parse_json(golden().metadata().at(name), name);
    const Image got = adm_crop(image_of(name + "/in.image"), static_cast<int>(options.at("size").as_int()));
    EXPECT_EQ(worst_difference(got, image_of(name + "/out.image")), 0) << name;
  }
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

TEST(ToU8, ThreeWaysToRound) {
  const ConstView given = golden().view("to_uint8/in.x");
  const std::span<const float> values(data_as<float>(given), static_cast<std::size_t>(given.numel()));
  for (const std::string name : {"adm", "save_image", "diffusers"}) {
    std::vector<std::uint8_t> got(values.size());
    to_u8(values, to_u8_called(name), got.data());
    EXPECT_EQ(std::memcmp(got.data(), golden().view("to_uint8/out." + name).data, got.size()), 0) << name;
  }
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

TEST(ImageGrid, IsTorchvisions) {
  const ConstView in = golden().view("grid/in.images"), out = golden().view("grid/out.grid");
  std::vector<Image> images;
  for (std::int64_t i = 0; i < in.shape[0]; ++i)
    images.push_back(image_of_planes(data_as<std::uint8_t>(in) + i * 3 * 5 * 6, 3, 5, 6));
  EXPECT_EQ(image_grid(images, 4, 2), image_of_planes(data_as<std::uint8_t>(out), 3, 16, 34));
  EXPECT_EQ(image_grid(std::span(images).first(2), 8, 1).width, 2 * 7 + 1);
  images.push_back(noise_image(5, 7, 3, 1));
  EXPECT_TRUE(has(message_of([&] { image_grid(images); }), "an image is 5 x 7 x 3, expected 5 x 6 x 3"));
}

}  // namespace
}  // namespace mhla
