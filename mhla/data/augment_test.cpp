// The pipeline of one image and of a batch against plain definitions, and its choices against their laws.
#include <cmath>
#include <map>

#include "mhla/data/augment_item.h"
#include "mhla/data/data_fixture.h"
#include "mhla/data/rand_augment.h"

namespace mhla {
namespace {

std::vector<float> augmented(const Augment& augment, const Image& image, std::int64_t item = 0, std::int64_t epoch = 0,
                             int copy = 0, const BatchDraw& batch = {}) {
  const ItemAugmenter augmenter(augment);
  ItemScratch scratch;
  scratch.image = image;
  std::vector<float> out(static_cast<std::size_t>(augmenter.item_floats()), NAN);
  augmenter.augment_item(scratch, batch, 7, epoch, item, copy, out.data());
  return out;
}

Augment sized(int height, int width, int channels) {
  Augment augment;
  augment.height = height;
  augment.width = width;
  augment.channels = channels;
  return augment;
}

TEST(Augment, NormalizesIntoPlanes) {
  const Image image = noise_image(5, 4, 3, 1);
  Augment augment = sized(5, 4, 3);
  augment.mean = {0.5f, 0.25f, 0.0f};
  augment.std = {0.5f, 2.0f, 1.0f};
  const std::vector<float> out = augmented(augment, image);
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t p = 0; p < 20; ++p)
      EXPECT_EQ(out[20 * c + p],
                static_cast<float>((image.pixels[3 * p + c] / 255.0 - augment.mean[c]) / augment.std[c]));
}

TEST(Augment, ChannelsGoBothWays) {
  const Image grey{1, 2, 1, {51, 255}};
  EXPECT_EQ(augmented(sized(1, 2, 3), grey), (std::vector<float>{0.2f, 1, 0.2f, 1, 0.2f, 1}));
  const Image colour{1, 1, 3, {255, 0, 0}};
  EXPECT_FLOAT_EQ(augmented(sized(1, 1, 1), colour)[0], 76.0f / 255.0f);
}

TEST(Augment, PadsOrSaysThatItCannot) {
  Augment augment = sized(32, 32, 1);
  augment.fit = Fit::kPad;
  const Image image = noise_image(28, 28, 1, 1);
  const std::vector<float> out = augmented(augment, image);
  for (int y = 0; y < 32; ++y)
    for (int x = 0; x < 32; ++x) {
      const bool inside = y >= 2 && x >= 2 && y < 30 && x < 30;
      EXPECT_FLOAT_EQ(out[static_cast<std::size_t>(32 * y + x)],
                      inside ? static_cast<float>(image.row(y - 2)[x - 2]) / 255.0f : 0.0f);
    }
  EXPECT_EQ(message_of([&] { augmented(augment, noise_image(33, 28, 1, 1)); }),
            "33 x 28 pixels do not fit 32 x 32 by padding; resize or crop");
}

// 224 / 0.875 = 256: a 300 x 400 image is brought to 256 x 341, then the middle 224 x 224.
TEST(Augment, CentreCropIsResizeAndMiddle) {
  const Image image = smooth_image(300, 400, 3);
  Augment augment = sized(224, 224, 3);
  augment.fit = Fit::kCenterCrop;
  ResampleScratch scratch;
  Image whole, middle;
  resize_image(image, {0, 0, 300, 400}, 256, 341, Interpolation::kBicubic, whole, scratch);
  crop_image(whole, {16, 58, 224, 224}, middle);  // 58.5 to even
  const std::vector<float> out = augmented(augment, image);
  for (std::size_t p = 0; p < 224 * 224; ++p)
    ASSERT_FLOAT_EQ(out[p], static_cast<float>(middle.pixels[3 * p]) / 255.0f);
}

TEST(Augment, RandomCropsKeepTheirRanges) {
  Augment augment;
  Philox random(1, Philox::kItem, 0, 0);
  for (int i = 0; i < 5000; ++i) {
    const Box box = random_crop(augment, 300, 400, random);
    ASSERT_TRUE(box.top >= 0 && box.left >= 0 && box.top + box.height <= 300 && box.left + box.width <= 400);
    const double area = static_cast<double>(box.height) * box.width / 120000.0;
    const double ratio = static_cast<double>(box.width) / box.height;
    EXPECT_TRUE(area > 0.078 && area < 1.01 && ratio > 0.73 && ratio < 1.36) << area << ", " << ratio;
  }
  augment.crop_area[1] = 0.5;  // on a square all of these fit, so the law is uniform
  double mean_area = 0.0;
  for (int i = 0; i < 5000; ++i) {
    const Box box = random_crop(augment, 400, 400, random);
    mean_area += static_cast<double>(box.height) * box.width / 160000.0 / 5000.0;
  }
  EXPECT_NEAR(mean_area, 0.29, 0.01);
  augment.crop_area[1] = 1.0;
  // A strip has no part of the wanted ratio and size: its middle with the nearest ratio.
  augment.crop_area[0] = 0.9;
  const Box strip = random_crop(augment, 10, 1000, random);
  EXPECT_EQ(strip.height, 10);
  EXPECT_EQ(strip.width, 13);
  EXPECT_EQ(strip.left, 493);
  const Box column = random_crop(augment, 1000, 10, random);
  EXPECT_EQ(column.width, 10);
  EXPECT_EQ(column.height, 13);
  const Box pixel = random_crop(augment, 1, 1, random);
  EXPECT_EQ(pixel.height * pixel.width, 1);
}

TEST(Augment, FlipsHalfOfThem) {
  Augment augment = sized(2, 3, 1);
  augment.flip = 0.5;
  const Image image{2, 3, 1, {1, 2, 3, 4, 5, 6}};
  int flipped = 0;
  for (std::int64_t item = 0; item < 1000; ++item) {
    const std::vector<float> out = augmented(augment, image, item);
    const bool turned = out[0] == 3.0f / 255.0f;
    EXPECT_FLOAT_EQ(out[0], (turned ? 3.0f : 1.0f) / 255.0f);
    EXPECT_FLOAT_EQ(out[5], (turned ? 4.0f : 6.0f) / 255.0f);
    flipped += turned;
  }
  EXPECT_NEAR(flipped, 500, 60);
}

TEST(Augment, ErasesOneRectangleWithNoise) {
  Augment augment = sized(20, 30, 2 + 1);
  augment.erase = 0.25;
  Image image;
  image.resize(20, 30, 3);
  std::fill(image.pixels.begin(), image.pixels.end(), std::uint8_t{0});
  int erased = 0;
  for (std::int64_t item = 0; item < 2000; ++item) {
    const std::vector<float> out = augmented(augment, image, item);
    int top = 20, left = 30, bottom = -1, right = -1, count = 0;
    for (int y = 0; y < 20; ++y)
      for (int x = 0; x < 30; ++x)
        if (out[static_cast<std::size_t>(30 * y + x)] != 0.0f) {
          top = std::min(top, y), left = std::min(left, x), bottom = std::max(bottom, y), right = std::max(right, x);
          ++count;
        }
    if (count == 0) continue;
    ++erased;
    EXPECT_EQ(count, (bottom - top + 1) * (right - left + 1));
    EXPECT_TRUE(count >= 6 && count <= 210) << count;  // 2 to 33 % of 600, rounded sides
    EXPECT_NE(out[static_cast<std::size_t>(30 * top + left)], out[static_cast<std::size_t>(600 + 30 * top + left)]);
  }
  EXPECT_NEAR(erased, 500, 80);
}

TEST(Augment, JitterStaysInItsRangeAndHasEveryOrder) {
  Augment augment = sized(1, 1, 1);
  augment.color_jitter = 0.4;
  std::map<int, int> values;
  for (std::int64_t item = 0; item < 2000; ++item)
    ++values[static_cast<int>(std::lround(255.0f * augmented(augment, Image{1, 1, 1, {100}}, item)[0]))];
  EXPECT_GE(values.begin()->first, 59);  // brightness alone moves one grey pixel
  EXPECT_LE(values.rbegin()->first, 140);
  EXPECT_GT(values.size(), 70u);
}

TEST(Augment, AnItemOfAnEpochIsAlwaysTheSame) {
  const Image image = noise_image(40, 50, 3, 2);
  const ImageSetPtr set = noise_set(4, 2, 3, 40, 50);
  for (const char* name : {"official", "deit", "strong"}) {
    Augment augment = augment_recipe(name, *set, name == std::string("strong") ? 56 : 24, 56);
    augment.channels = 3;
    const std::vector<float> first = augmented(augment, image, 5, 3, 1);
    EXPECT_EQ(augmented(augment, image, 5, 3, 1), first);
    EXPECT_NE(augmented(augment, image, 6, 3, 1), first);
    EXPECT_NE(augmented(augment, image, 5, 4, 1), first);
    EXPECT_NE(augmented(augment, image, 5, 3, 0), first);
  }
}

TEST(Augment, EvaluationHasNoChance) {
  const ImageSetPtr set = noise_set(4, 2, 3, 40, 50);
  for (const std::string& name : augment_recipes()) {
    Augment augment = without_chance(augment_recipe(name, *set, 56, 56));
    augment.channels = 3;
    const Image image = noise_image(40, 50, 3, 2);
    EXPECT_EQ(augmented(augment, image, 1, 1), augmented(augment, image, 2, 9)) << name;
    EXPECT_EQ(draw_batch(augment, 1, 2, 3).mix, BatchDraw::Mix::kNone);
    EXPECT_EQ(draw_batch(augment, 1, 2, 3).down, 0);
  }
  EXPECT_EQ(without_chance(augment_recipe("deit", *set, 56, 56)).fit, Fit::kCenterCrop);
}

TEST(RandAugment, ReadsTimmsText) {
  const RandAugment options = parse_rand_augment("rand-m9-mstd0.5-inc1");
  EXPECT_EQ(options.layers, 2);
  EXPECT_EQ(options.magnitude, 9.0);
  EXPECT_EQ(options.magnitude_std, 0.5);
  EXPECT_TRUE(options.increasing);
  EXPECT_EQ(parse_rand_augment("").layers, 0);
  EXPECT_EQ(parse_rand_augment("rand-n3-p0.25").layers, 3);
  EXPECT_EQ(parse_rand_augment("rand-n3-p0.25").probability, 0.25);
  EXPECT_TRUE(has(message_of([] { parse_rand_augment("augmix-m3"); }), "begins with 'augmix', expected rand"));
  EXPECT_TRUE(has(message_of([] { parse_rand_augment("rand-q3"); }), "'q3' of 'rand-q3' is unknown"));
  EXPECT_TRUE(has(message_of([] { parse_rand_augment("rand-m"); }), "'m' of 'rand-m' has no number"));
  EXPECT_TRUE(has(message_of([] { parse_rand_augment("rand-m9x"); }), "'m9x' of 'rand-m9x' has no number"));
}

TEST(RandAugment, StrengthsAtBothEnds) {
  const auto at = [](AugmentOp op, double magnitude, bool increasing, bool negate = false) {
    return op_argument(op, magnitude, increasing, negate);
  };
  EXPECT_DOUBLE_EQ(at(AugmentOp::kRotate, 10, true), 30.0);
  EXPECT_DOUBLE_EQ(at(AugmentOp::kRotate, 10, true, true), -30.0);
  EXPECT_EQ(at(AugmentOp::kPosterize, 0, true), 4.0);
  EXPECT_EQ(at(AugmentOp::kPosterize, 10, true), 0.0);
  EXPECT_EQ(at(AugmentOp::kPosterize, 10, false), 4.0);
  EXPECT_EQ(at(AugmentOp::kSolarize, 0, true), 256.0);
  EXPECT_EQ(at(AugmentOp::kSolarize, 9, true), 26.0);  // 256 - 230
  EXPECT_EQ(at(AugmentOp::kSolarize, 9, false), 230.0);
  EXPECT_EQ(at(AugmentOp::kSolarizeAdd, 9, true), 99.0);
  EXPECT_DOUBLE_EQ(at(AugmentOp::kColor, 10, true), 1.9);
  EXPECT_DOUBLE_EQ(at(AugmentOp::kColor, 10, true, true), 0.1);
  EXPECT_DOUBLE_EQ(at(AugmentOp::kSharpness, 0, false), 0.1);
  EXPECT_DOUBLE_EQ(at(AugmentOp::kShearY, 10, true), 0.3);
  EXPECT_DOUBLE_EQ(at(AugmentOp::kTranslateX, 10, true, true), -0.45);
}

TEST(RandAugment, MovesGoWhereTheySay) {
  ItemScratch scratch;
  scratch.image = {1, 4, 1, {1, 2, 3, 4}};
  const std::uint8_t fill = 99;
  apply_op(AugmentOp::kTranslateX, 0.25, Interpolation::kBilinear, &fill, scratch);
  EXPECT_EQ(scratch.image, (Image{1, 4, 1, {2, 3, 4, 99}}));
  scratch.image = {4, 1, 1, {1, 2, 3, 4}};
  apply_op(AugmentOp::kTranslateY, -0.5, Interpolation::kBilinear, &fill, scratch);
  EXPECT_EQ(scratch.image, (Image{4, 1, 1, {99, 99, 1, 2}}));
}

TEST(RandAugment, EveryOperationKeepsTheSizeAndMostChangeTheImage) {
  const std::uint8_t fill[3] = {1, 2, 3};
  for (const int channels : {1, 3})
    for (const auto& [height, width] : {std::pair{1, 1}, {2, 3}, {32, 32}})
      for (int op = 0; op < kAugmentOps; ++op)
        for (const double magnitude : {0.0, 9.0, 10.0}) {
          ItemScratch scratch;
          Image& image = scratch.image = noise_image(height, width, channels, 6);
          for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(20 + pixel / 2);
          const Image before = image;
          apply_op(static_cast<AugmentOp>(op), op_argument(static_cast<AugmentOp>(op), magnitude, true, false),
                   Interpolation::kBicubic, fill, scratch);
          EXPECT_EQ(image.height, height);
          EXPECT_EQ(image.pixels.size(), static_cast<std::size_t>(height * width * channels));
          const bool grey_colour = static_cast<AugmentOp>(op) == AugmentOp::kColor && channels == 1;
          if (height == 32 && magnitude == 9.0 && !grey_colour) {
            EXPECT_NE(image, before) << op;
          }
        }
}

TEST(BatchMix, MixupIsAWeightedSumWithTheMirroredBatch) {
  for (const std::int64_t count : {1, 2, 5}) {
    std::vector<float> images, want;
    for (std::int64_t i = 0; i < count * 6; ++i) images.push_back(static_cast<float>(i * i));
    const BatchDraw draw{.mix = BatchDraw::Mix::kMixup, .weight = 0.75, .cut = {}};
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t p = 0; p < 6; ++p)
        want.push_back(0.75f * images[static_cast<std::size_t>(6 * i + p)] +
                       0.25f * images[static_cast<std::size_t>(6 * (count - 1 - i) + p)]);
    mix_images(draw, count, 1, 2, 3, images.data());
    EXPECT_EQ(images, want);
  }
}

TEST(BatchMix, CutmixExchangesABox) {
  std::vector<float> images(2 * 2 * 4 * 5);
  for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<float>(i);
  const std::vector<float> before = images;
  const BatchDraw draw{.mix = BatchDraw::Mix::kCutmix, .weight = 0.8, .cut = {1, 2, 2, 2}};
  mix_images(draw, 2, 2, 4, 5, images.data());
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t c = 0; c < 2; ++c)
      for (std::size_t y = 0; y < 4; ++y)
        for (std::size_t x = 0; x < 5; ++x) {
          const bool cut = y >= 1 && y < 3 && x >= 2 && x < 4;
          EXPECT_EQ(images[((i * 2 + c) * 4 + y) * 5 + x], before[(((cut ? 1 - i : i) * 2 + c) * 4 + y) * 5 + x]);
        }
}

TEST(BatchMix, DrawsFollowTheirLaws) {
  Augment augment = sized(32, 32, 3);
  augment.shift = 2;
  augment.mixup = 0.8;
  augment.cutmix = 1.0;
  augment.mix_probability = 0.5;
  augment.switch_to_cutmix = 0.25;
  std::map<BatchDraw::Mix, int> kinds;
  std::map<int, int> downs;
  for (std::int64_t batch = 0; batch < 4000; ++batch) {
    const BatchDraw draw = draw_batch(augment, 3, 1, 128 * batch);
    ++kinds[draw.mix];
    ++downs[draw.down];
    if (draw.mix == BatchDraw::Mix::kNone) {
      EXPECT_EQ(draw.weight, 1.0);
    }
    EXPECT_TRUE(draw.weight >= 0.0 && draw.weight <= 1.0);
    if (draw.mix != BatchDraw::Mix::kCutmix) continue;
    EXPECT_TRUE(draw.cut.top >= 0 && draw.cut.height >= 0 && draw.cut.top + draw.cut.height <= 32);
    EXPECT_TRUE(draw.cut.left >= 0 && draw.cut.width >= 0 && draw.cut.left + draw.cut.width <= 32);
    EXPECT_DOUBLE_EQ(draw.weight, 1.0 - draw.cut.height * draw.cut.width / 1024.0);
  }
  EXPECT_NEAR(kinds[BatchDraw::Mix::kNone], 2000, 130);
  EXPECT_NEAR(kinds[BatchDraw::Mix::kCutmix], 500, 90);
  EXPECT_EQ(downs.size(), 5u);
  for (const auto& [down, count] : downs) EXPECT_NEAR(count, 800, 110) << down;
}

TEST(Augment, WrongOptionsAreNamed) {
  const auto said = [](auto change) {
    Augment augment;
    change(augment);
    return message_of([&] { check_augment(augment); });
  };
  EXPECT_EQ(said([](Augment&) {}), "nothing was thrown");
  EXPECT_TRUE(has(said([](Augment& a) { a.flip = 1.5; }), "augment: flip is 1.5, expected a probability"));
  EXPECT_TRUE(has(said([](Augment& a) { a.erase = NAN; }), "augment: erase is nan"));
  EXPECT_TRUE(has(said([](Augment& a) { a.crop_area[1] = 0.01; }), "augment: crop_area is 0.08 to 0.01"));
  EXPECT_TRUE(has(said([](Augment& a) { a.channels = 2; }), "augment: channels is 2"));
  EXPECT_TRUE(has(said([](Augment& a) { a.std = {0.0f}; }), "std 0"));
  EXPECT_TRUE(has(said([](Augment& a) { a.mean = {0, 0}; }), "2 values of mean and 1 of std"));
  EXPECT_TRUE(has(said([](Augment& a) { a.mixup = -1; }), "mixup or cutmix is -1"));
  EXPECT_TRUE(has(said([](Augment& a) { a.shift = -1; }), "shift is -1"));
  EXPECT_TRUE(has(said([](Augment& a) { a.height = -4; }), "height is -4"));
  EXPECT_TRUE(has(said([](Augment& a) { a.crop_fraction = 0; }), "crop_fraction is 0"));
  EXPECT_TRUE(has(said([](Augment& a) { a.rand_augment.magnitude = 11; }), "magnitude is 11"));
  EXPECT_TRUE(has(message_of([] { augment_recipe("diet", *noise_set(1, 1, 1), 8, 8); }),
                  "recipe 'diet' is unknown, expected one of none, small"));
}

}  // namespace
}  // namespace mhla
