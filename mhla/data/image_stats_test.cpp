// Mean, deviation, sizes and damage against plain sums, for one thread and several.
#include "mhla/data/image_stats.h"

#include <cmath>

#include "mhla/data/data_fixture.h"

namespace mhla {
namespace {

TEST(ImageStats, AgreeWithPlainSums) {
  const ImageSetPtr set = noise_set(150, 4, 3, 5, 6, 3);
  ThreadPool pool(3);
  InlineExecutor alone;
  std::int64_t last = 0;
  const ImageStats stats = image_stats(*set, 0, pool, [&](std::int64_t done) { last = done; });
  EXPECT_EQ(last, 150);
  for (std::size_t c = 0; c < 3; ++c) {
    double sum = 0.0, squares = 0.0, count = 0.0;
    for (std::int64_t i = 0; i < 150; ++i) {
      Image image;
      set->decode(i, image);
      for (std::size_t p = c; p < image.pixels.size(); p += 3) {
        const double value = image.pixels[p] / 255.0;
        sum += value, squares += value * value, ++count;
      }
    }
    EXPECT_NEAR(stats.mean[c], sum / count, 1e-9);
    EXPECT_NEAR(stats.std[c], std::sqrt(squares / count - sum * sum / count / count), 1e-9);
  }
  EXPECT_EQ(stats.min_height, 5);
  EXPECT_EQ(stats.max_height, 7);
  EXPECT_EQ(stats.max_width, 10);
  EXPECT_EQ(stats.per_class, (std::vector<std::int64_t>{38, 38, 37, 37}));
  EXPECT_EQ(stats.damaged, 0);
  EXPECT_EQ(image_stats(*set, 0, alone).mean, stats.mean);
  EXPECT_EQ(image_stats(*set, 10, alone).looked_at, 10);
  EXPECT_EQ(image_stats(*set, 1000, alone).looked_at, 150);
}

TEST(ImageStats, DamagedImagesAreNamedInOrder) {
  const ScratchFolder folder;
  for (int i = 0; i < 8; ++i) {
    folder.write(str("a/", i, ".png"), encode_png(noise_image(4, 4, 3, 1)));
    folder.write_text(str("b/", i, ".jpg"), "no image");
  }
  ThreadPool pool(2);
  const ImageStats stats = image_stats(*open_images(folder.path(), Split::kTrain), 0, pool, {}, 3);
  EXPECT_EQ(stats.looked_at, 16);
  EXPECT_EQ(stats.damaged, 8);
  ASSERT_EQ(stats.damage.size(), 3u);
  EXPECT_TRUE(has(stats.damage[2], folder.path("b/2.jpg") + ": begins with 6e 6f 20 69"));
  EXPECT_EQ(stats.pixels, 8 * 16);
}

TEST(ImageStats, ThreadsDoNotShowInAnything) {
  const ImageSetPtr set = noise_set(700, 3, 1, 4, 4, 2);
  InlineExecutor alone;
  ThreadPool pool(4);
  const ImageStats a = image_stats(*set, 0, alone), b = image_stats(*set, 0, pool);
  EXPECT_EQ(a.mean, b.mean);
  EXPECT_EQ(a.std, b.std);
  EXPECT_EQ(a.pixels, b.pixels);
}

}  // namespace
}  // namespace mhla
