// Moving garments: the picture against its definition pixel by pixel, the track, captions and their words, and that a
// clip depends on its number alone.
#include "mhla/data/moving_garments.h"

#include <cmath>

#include "mhla/data/caption_words.h"
#include "mhla/data/data_fixture.h"

namespace mhla {
namespace {

std::string small_garments(const ScratchFolder& folder) {
  folder.write("train-images-idx3-ubyte", idx_images(40, 28, 28)),
      folder.write("train-labels-idx1-ubyte", idx_labels(40));
  folder.write("t10k-images-idx3-ubyte", idx_images(20, 28, 28)),
      folder.write("t10k-labels-idx1-ubyte", idx_labels(20));
  return "moving-garments:" + folder.path();
}

// torch's grid_sample, bilinear, zeros outside, align_corners false, of a square image at x, y from -1 to 1.
double sampled(const Image& image, double x, double y) {
  const double u = ((x + 1) * image.width - 1) / 2, v = ((y + 1) * image.height - 1) / 2;
  double sum = 0;
  for (int j = 0; j < image.height; ++j)
    for (int i = 0; i < image.width; ++i)
      sum += std::max(0.0, 1 - std::abs(u - i)) * std::max(0.0, 1 - std::abs(v - j)) * image.row(j)[i] / 255.0;
  return sum;
}

TEST(MovingGarments, APictureIsTheSampledGarmentOverItsGround) {
  Image garment = noise_image(28, 28, 1, 5);
  const ClipShape shape{.frames = 4, .rows = 24, .columns = 24, .fps = 0};
  for (const std::int64_t direction : {0, 3, 6}) {
    GarmentScene scene;
    scene.attributes.values = {7, 3, direction, 1, 2};
    scene.start = {6.3, 17.9};
    std::vector<float> clip(static_cast<std::size_t>(shape.numbers()), NAN);
    paint_garment(scene, garment, shape, clip.data());
    const std::array<double, 3> colour{1, 1, .2}, ground{.05, .05, .35};
    const double half = 24 * 0.22;
    const auto track = garment_track(scene, shape);
    double worst = 0;
    for (int c = 0; c < 3; ++c)
      for (int f = 0; f < 4; ++f)
        for (int y = 0; y < 24; ++y)
          for (int x = 0; x < 24; ++x) {
            const auto centre = track[static_cast<std::size_t>(f)];
            const double cover = sampled(garment, (x + 0.5 - centre[1]) / half, (y + 0.5 - centre[0]) / half);
            const auto i = static_cast<std::size_t>(c);
            const double want = 2 * (cover * colour[i] + (1 - cover) * ground[i]) - 1;
            const double got = clip[static_cast<std::size_t>(((c * 4 + f) * 24 + y) * 24 + x)];
            ASSERT_LE(std::abs(got - want), 1e-6) << c << " " << f << " " << y << " " << x;
            worst = std::max(worst, cover);
          }
    EXPECT_GT(worst, 0.5);  // the garment is there
  }
}

// Numbers of PyTorch 1.13.1: grid_sample over the same track.
TEST(MovingGarments, IsWhatPyTorchPaints) {
  Image garment;
  garment.resize(28, 28, 1);
  for (std::size_t p = 0; p < 784; ++p) garment.pixels[p] = static_cast<std::uint8_t>(7 * p % 251);
  const ClipShape shape{.frames = 16, .rows = 64, .columns = 64, .fps = 0};
  GarmentScene scene;
  scene.attributes.values = {0, 4, 5, 1, 3}, scene.start = {20.3, 41.7};
  std::vector<float> clip(static_cast<std::size_t>(shape.numbers()), NAN);
  paint_garment(scene, garment, shape, clip.data());
  double sum = 0, squares = 0;
  for (const float value : clip) sum += value, squares += static_cast<double>(value) * value;
  EXPECT_NEAR(sum, -91634.284, 0.1);
  EXPECT_NEAR(squares, 66423.744, 0.1);
  const auto at = [&](int c, int f, int y, int x) {
    return clip[static_cast<std::size_t>(((c * 16 + f) * 64 + y) * 64 + x)];
  };
  EXPECT_NEAR(at(0, 0, 10, 40), 0.316938, 2e-5);
  EXPECT_NEAR(at(1, 3, 20, 50), -0.431129, 2e-5);
  EXPECT_NEAR(at(2, 9, 30, 45), -0.461197, 2e-5);
  EXPECT_NEAR(at(0, 15, 40, 12), -0.4, 2e-5);
  EXPECT_NEAR(at(2, 0, 33, 55), -0.108309, 2e-5);
  EXPECT_NEAR(garment_track(scene, shape)[9][0], 23.7698, 1e-4);  // it has bounced
}

TEST(MovingGarments, MoveStraightAndBounce) {
  const ClipShape shape{.frames = 16, .rows = 64, .columns = 64, .fps = 0};
  GarmentScene scene;
  scene.attributes.values = {0, 0, 3, 0, 0};  // down, slow
  scene.start = {20, 30};
  auto track = garment_track(scene, shape);
  ASSERT_EQ(track.size(), 16u);
  for (std::size_t f = 0; f < 16; ++f) {
    EXPECT_NEAR(track[f][0], 20.0 + static_cast<double>(f), 1e-9);
    EXPECT_NEAR(track[f][1], 30.0, 1e-9);
  }
  scene.attributes.values[3] = 1;  // fast: 2.5 pixels a frame, and the wall is at 64 - 14.08
  scene.start = {45, 30};
  track = garment_track(scene, shape);
  EXPECT_NEAR(track[1][0], 47.5, 1e-9);
  EXPECT_NEAR(track[2][0], 2 * 49.92 - 50.0, 1e-9);
  EXPECT_LT(track[3][0], track[2][0]);
  // Half as many frames go twice as far a frame; on twice the side everything is twice as large.
  const ClipShape other{.frames = 8, .rows = 128, .columns = 128, .fps = 0};
  scene.attributes.values[3] = 0, scene.start = {40, 60};
  EXPECT_NEAR(garment_track(scene, other)[1][0], 44.0, 1e-9);
  for (const auto& centre : garment_track(scene, other)) EXPECT_NEAR(centre[1], 60.0, 1e-9);
}

TEST(MovingGarments, AClipDependsOnItsNumberAlone) {
  const ScratchFolder folder;
  const std::string data = small_garments(folder);
  const ClipShape shape{.frames = 3, .rows = 16, .columns = 16, .fps = 0};
  const VideoSetPtr set = open_videos(data, Split::kTrain, shape), again = open_videos(data, Split::kTrain, shape);
  const VideoSetPtr test = open_videos(data, Split::kTest, shape);
  EXPECT_TRUE(set->is_made());
  EXPECT_TRUE(has_test_videos(data));
  const std::vector<float> fifth = clip_of(*set, 5);
  (void)clip_of(*again, 6);
  EXPECT_EQ(clip_of(*again, 5), fifth);
  EXPECT_NE(clip_of(*set, 6), fifth);
  EXPECT_NE(clip_of(*test, 5), fifth);
  EXPECT_EQ(set->caption(5), again->caption(5));
  for (const float value : fifth) ASSERT_TRUE(value >= -1 && value <= 1);
  std::array<std::array<int, 10>, GarmentAttributes::kCount> seen{};
  for (std::int64_t item = 0; item < 2000; ++item) {
    const auto attributes = garment_attributes(set->caption(item));
    ASSERT_TRUE(attributes) << set->caption(item);
    for (std::size_t i = 0; i < seen.size(); ++i) ++seen[i][static_cast<std::size_t>(attributes->values[i])];
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double even = 2000.0 / static_cast<double>(GarmentAttributes::kValues[i]);
    for (std::int64_t v = 0; v < GarmentAttributes::kValues[i]; ++v)
      EXPECT_NEAR(seen[i][static_cast<std::size_t>(v)], even, 5 * std::sqrt(even)) << GarmentAttributes::kNames[i];
  }
}

TEST(MovingGarments, CaptionsAndTheirWords) {
  GarmentAttributes a;
  a.values = {7, 3, 2, 1, 1};
  EXPECT_EQ(a.caption(), "a color3 class7 moves dir2 fast on a ground1");
  EXPECT_EQ(garment_attributes(a.caption()), a);
  for (const char* other :
       {"", "a cat", "a color6 class7 moves dir2 fast on a ground1", "a color3 class7 moves dir2 quick on a ground1"})
    EXPECT_FALSE(garment_attributes(other)) << other;
  const CaptionWords words(garment_words());
  EXPECT_EQ(words.rows(), 36);
  std::vector<std::int64_t> ids(16);
  words.encode(a.caption(), 16, ids.data());
  // Numbers of the published script: a 2, color3 9, class7 19, moves 3, dir2 24, fast 31, on 4, a 2, ground1 33.
  EXPECT_EQ(ids, (std::vector<std::int64_t>{2, 9, 19, 3, 24, 31, 4, 2, 33, 0, 0, 0, 0, 0, 0, 0}));
  words.encode("", 16, ids.data());
  EXPECT_EQ(ids[0], CaptionWords::kEmpty);
  EXPECT_EQ(ids[1], CaptionWords::kPadding);
  EXPECT_TRUE(has(message_of([&] { words.encode("a color9", 16, ids.data()); }), "no word 'color9'"));
  EXPECT_TRUE(has(message_of([&] { words.encode("a a a", 2, ids.data()); }), "has 3 words, expected at most 2"));
}

TEST(CaptionWords, OfCaptionsAndThroughAFile) {
  const CaptionWords words = CaptionWords::of({"A red ball.", "a blue ball,", "A cat!"});
  EXPECT_EQ(words.words(), (std::vector<std::string>{"<empty>", "a", "ball", "blue", "cat", "red"}));
  const ScratchFolder folder;
  words.write(folder.path());
  EXPECT_TRUE(CaptionWords::read(folder.path()) == words);
  EXPECT_TRUE(has(message_of([] { CaptionWords({"a"}); }), "expected <empty>"));
  folder.write_text("words.json", R"(["<empty>", "a", "a"])");
  EXPECT_TRUE(has(message_of([&] { CaptionWords::read(folder.path()); }), "'a' is there twice"));
}

}  // namespace
}  // namespace mhla
