// Every change of colour against its definition on pixels that can be followed by hand.
#include "mhla/data/color.h"

#include "mhla/data/data_fixture.h"

namespace mhla {
namespace {

template <class Change>
Image changed(Image image, const Change& change) {
  change(image);
  return image;
}

TEST(Color, FactorOneChangesNothing) {
  for (const int channels : {1, 3}) {
    const Image image = noise_image(7, 9, channels, 4);
    for (const auto adjust : {adjust_brightness, adjust_contrast, adjust_color, adjust_sharpness})
      EXPECT_EQ(changed(image, [&](Image& i) { adjust(i, 1.0); }), image);
  }
}

TEST(Color, FactorZeroIsPlain) {
  const Image image = noise_image(6, 5, 3, 4);
  for (const std::uint8_t pixel : changed(image, [](Image& i) { adjust_brightness(i, 0.0); }).pixels)
    EXPECT_EQ(pixel, 0);
  double grey = 0.0;
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) grey += luma(image.pixels.data() + i) / 30.0;
  for (const std::uint8_t pixel : changed(image, [](Image& i) { adjust_contrast(i, 0.0); }).pixels)
    EXPECT_EQ(pixel, static_cast<int>(grey + 0.5));
  Image want = image;
  convert_channels(want, 1);
  convert_channels(want, 3);
  EXPECT_EQ(changed(image, [](Image& i) { adjust_color(i, 0.0); }), want);
}

TEST(Color, BlendsByHand) {
  const Image pixel{1, 1, 3, {100, 200, 50}};  // grey 153
  EXPECT_EQ(changed(pixel, [](Image& i) { adjust_brightness(i, 1.5); }), (Image{1, 1, 3, {150, 255, 75}}));
  EXPECT_EQ(luma(pixel.pixels.data()), 153);
  EXPECT_EQ(changed(pixel, [](Image& i) { adjust_contrast(i, 0.5); }), (Image{1, 1, 3, {126, 176, 101}}));
  EXPECT_EQ(changed(pixel, [](Image& i) { adjust_color(i, 2.0); }), (Image{1, 1, 3, {47, 247, 0}}));
  EXPECT_EQ(changed(Image{1, 1, 1, {9}}, [](Image& i) { adjust_color(i, 2.0); }), (Image{1, 1, 1, {9}}));
}

TEST(Color, SharpnessSmoothsInsideTheBorder) {
  const Image spot{3, 3, 1, {0, 0, 0, 0, 130, 0, 0, 0, 0}};
  EXPECT_EQ(changed(spot, [](Image& i) { adjust_sharpness(i, 0.0); }).pixels[4], 50);  // 5 / 13 of 130
  EXPECT_EQ(changed(spot, [](Image& i) { adjust_sharpness(i, 1.5); }).pixels[4], 170);
  const Image image = noise_image(9, 8, 3, 8);
  const Image out = changed(image, [](Image& i) { adjust_sharpness(i, 0.25); });
  for (int y = 0; y < 9; ++y)
    for (int x = 0; x < 8; ++x)
      for (int c = 0; c < 3; ++c) {
        const int here = image.row(y)[3 * x + c];
        double want = here;
        if (y > 0 && x > 0 && y < 8 && x < 7) {
          double sum = 4.0 * here;
          for (int i = -1; i <= 1; ++i)
            for (int j = -1; j <= 1; ++j) sum += image.row(y + i)[3 * (x + j) + c];
          want = sum / 13.0 + 0.25 * (here - sum / 13.0);
        }
        EXPECT_NEAR(out.row(y)[3 * x + c], want, 1.38);  // 0.75 of half a step, and the cut to whole numbers
      }
}

TEST(Color, ContrastIsStretchedPerChannel) {
  Image image{1, 3, 3, {50, 7, 0, 100, 7, 255, 150, 7, 128}};
  stretch_contrast(image);
  EXPECT_EQ(image, (Image{1, 3, 3, {0, 7, 0, 127, 7, 255, 255, 7, 128}}));
}

TEST(Color, EqualizeFlattensTheHistogram) {
  Image image;
  image.resize(64, 64, 1);
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = static_cast<std::uint8_t>(100 + i % 50);
  equalize(image);
  int low = 255, high = 0;
  for (const std::uint8_t pixel : image.pixels) low = std::min<int>(low, pixel), high = std::max<int>(high, pixel);
  EXPECT_LE(low, 2);
  EXPECT_GE(high, 250);
  Image flat{1, 4, 1, {9, 9, 9, 9}};
  equalize(flat);
  EXPECT_EQ(flat, (Image{1, 4, 1, {9, 9, 9, 9}}));
  // By hand: 2 of 0, 510 of 1, 3 of 2: step (515 - 3) / 255 = 2, levels 1 / 2, (1 + 2) / 2, (1 + 512) / 2
  Image three;
  three.resize(1, 515, 1);
  for (std::size_t i = 0; i < 515; ++i) three.pixels[i] = i < 2 ? 0 : i < 512 ? 1 : 2;
  equalize(three);
  EXPECT_EQ(three.pixels[0], 0);
  EXPECT_EQ(three.pixels[2], 1);
  EXPECT_EQ(three.pixels[514], 255);
}

TEST(Color, TablesByHand) {
  const Image image{1, 4, 1, {0, 127, 128, 255}};
  EXPECT_EQ(changed(image, invert), (Image{1, 4, 1, {255, 128, 127, 0}}));
  EXPECT_EQ(changed(image, [](Image& i) { posterize(i, 1); }), (Image{1, 4, 1, {0, 0, 128, 128}}));
  EXPECT_EQ(changed(image, [](Image& i) { posterize(i, 8); }), image);
  EXPECT_EQ(changed(image, [](Image& i) { posterize(i, 0); }), (Image{1, 4, 1, {0, 0, 0, 0}}));
  EXPECT_EQ(changed(image, [](Image& i) { solarize(i, 128); }), (Image{1, 4, 1, {0, 127, 127, 0}}));
  EXPECT_EQ(changed(image, [](Image& i) { solarize(i, 256); }), image);
  EXPECT_EQ(changed(image, [](Image& i) { solarize(i, 0); }), changed(image, invert));
  EXPECT_EQ(changed(image, [](Image& i) { solarize_add(i, 130); }), (Image{1, 4, 1, {130, 255, 128, 255}}));
}

}  // namespace
}  // namespace mhla
