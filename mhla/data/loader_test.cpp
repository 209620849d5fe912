// What the loader promises: one order per seed and epoch, the same bits for every number of threads and from every
// cursor, damaged images left out and counted.
#include "mhla/data/loader.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "mhla/data/data_fixture.h"

namespace mhla {
namespace {

// Everything random at once, on images of different sizes.
LoaderOptions busy_options(std::int64_t batch_size) {
  LoaderOptions options;
  options.batch_size = batch_size;
  options.seed = 11;
  options.augment = augment_recipe("official", *noise_set(1, 1, 3), 14, 12);
  options.augment.shift = 2;
  options.augment.color_jitter = 0.3;
  return options;
}

std::vector<Batch> all_batches(const ImageSetPtr& set, const LoaderOptions& options, std::size_t at_most = 1000) {
  Loader loader(set, options);
  std::vector<Batch> batches(1);
  while (batches.size() <= at_most && loader.next(batches.back())) batches.emplace_back();
  batches.pop_back();
  return batches;
}

void expect_same(const Batch& a, const Batch& b) {
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.items, b.items);
  EXPECT_EQ(a.labels, b.labels);
  EXPECT_EQ(a.other_labels, b.other_labels);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.next, b.next);
  ASSERT_EQ(a.images.size(), b.images.size());
  EXPECT_TRUE(std::equal(a.images.begin(), a.images.end(), b.images.begin()));
}

// A set whose items divisible by `every` cannot be decoded, and which takes its time unevenly.
class DamagedSet final : public ImageSet {
 public:
  DamagedSet(ImageSetPtr whole, std::int64_t every) : whole_(std::move(whole)), every_(every) {}
  [[nodiscard]] std::string name() const override { return "damaged"; }
  [[nodiscard]] std::string kind() const override { return "memory"; }
  [[nodiscard]] std::int64_t size() const override { return whole_->size(); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return whole_->class_names(); }
  [[nodiscard]] int channels() const override { return whole_->channels(); }
  [[nodiscard]] int height() const override { return whole_->height(); }
  [[nodiscard]] int width() const override { return whole_->width(); }
  [[nodiscard]] int label(std::int64_t item) const override { return whole_->label(item); }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return str("item ", item); }
  void decode(std::int64_t item, Image& image) const override {
    if (item % 7 == 3) std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (item % every_ == 0) fail("item ", item, ": damaged");
    whole_->decode(item, image);
  }

 private:
  ImageSetPtr whole_;
  std::int64_t every_;
};

TEST(Order, IsAPermutationThatChangesWithEpochAndSeed) {
  for (const std::int64_t size : {1, 2, 1000}) {
    std::vector<std::int64_t> order = epoch_order(size, 3, 1, true, 1);
    if (size > 10) {
      EXPECT_NE(order, epoch_order(size, 3, 2, true, 1));
      EXPECT_NE(order, epoch_order(size, 4, 1, true, 1));
    }
    EXPECT_EQ(order, epoch_order(size, 3, 1, true, 1));
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, epoch_order(size, 3, 1, false, 1));
    for (std::int64_t i = 0; i < size; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
  const auto once = epoch_order(10, 5, 0, true, 1), thrice = epoch_order(10, 5, 0, true, 3);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(thrice[i], once[i / 3]);
}

TEST(Loader, EveryItemOnceInAnEpoch) {
  const ImageSetPtr set = noise_set(50, 5, 1);
  LoaderOptions options;
  options.batch_size = 8;
  options.epochs = 2;
  options.drop_last = false;
  options.threads = 2;
  const std::vector<Batch> batches = all_batches(set, options);
  ASSERT_EQ(batches.size(), 14u);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> items;
    for (std::size_t b = 7 * epoch; b < 7 * epoch + 7; ++b) {
      const Batch& batch = batches[b];
      EXPECT_EQ(batch.size, b % 7 == 6 ? 2 : 8);
      EXPECT_EQ(batch.epoch, static_cast<std::int64_t>(epoch));
      EXPECT_EQ(batch.position, static_cast<std::int64_t>(8 * (b % 7)));
      EXPECT_FALSE(batch.mixed);
      for (std::size_t i = 0; i < batch.items.size(); ++i) {
        const std::int64_t item = batch.items[i];
        items.push_back(item);
        EXPECT_EQ(batch.labels[i], set->label(item));
        EXPECT_EQ(batch.other_labels[i], set->label(item));
        EXPECT_EQ(batch.weights[i], 1.0f);
        Image image;
        set->decode(item, image);
        for (std::size_t p = 0; p < 120; ++p)
          ASSERT_FLOAT_EQ(batch.images[120 * i + p], static_cast<float>(image.pixels[p]) / 255.0f);
      }
    }
    EXPECT_EQ(items, epoch_order(50, 0, static_cast<std::int64_t>(epoch), true, 1));
  }
  EXPECT_EQ(batches.back().next, (Cursor{2, 0}));
}

TEST(Loader, TheSameBitsForEveryNumberOfThreads) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(101, 5, 3, 20, 16, 6), 9);
  LoaderOptions options = busy_options(16);
  options.epochs = 2;
  options.drop_last = false;
  options.threads = 1;
  options.prefetch = 1;
  const std::vector<Batch> want = all_batches(set, options);
  ASSERT_EQ(want.size(), 14u);
  EXPECT_TRUE(std::any_of(want.begin(), want.end(), [](const Batch& b) { return b.mixed; }));
  for (const auto& [threads, prefetch] : {std::pair{2, 3}, {5, 2}, {8, 20}}) {
    options.threads = threads;
    options.prefetch = prefetch;
    const std::vector<Batch> got = all_batches(set, options);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      expect_same(got[i], want[i]);
      EXPECT_EQ(got[i].damaged, want[i].damaged);
    }
  }
}

TEST(Loader, GoesOnFromEveryCursor) {
  const ImageSetPtr set = noise_set(43, 5, 3, 20, 16, 6);
  LoaderOptions options = busy_options(8);
  options.epochs = 3;
  options.threads = 2;
  const std::vector<Batch> want = all_batches(set, options);
  ASSERT_EQ(want.size(), 15u);
  for (std::size_t done = 0; done < want.size(); ++done) {
    options.start = want[done].next;
    const std::vector<Batch> rest = all_batches(set, options);
    ASSERT_EQ(rest.size(), want.size() - done - 1);
    for (std::size_t i = 0; i < rest.size(); ++i) expect_same(rest[i], want[done + 1 + i]);
  }
  Loader loader(set, options);
  EXPECT_EQ(loader.cursor(), (Cursor{3, 0}));
  Batch batch;
  EXPECT_FALSE(loader.next(batch));
  EXPECT_FALSE(loader.next(batch));
}

TEST(Loader, TheCursorIsThatOfTheLastBatchGiven) {
  LoaderOptions options;
  options.batch_size = 10;
  options.threads = 2;
  Loader loader(noise_set(35, 5, 1), options);
  EXPECT_EQ(loader.batches_per_epoch(), 3);
  EXPECT_EQ(loader.cursor(), (Cursor{0, 0}));
  Batch batch;
  for (const Cursor want : {Cursor{0, 10}, {0, 20}, {1, 0}, {1, 10}}) {
    ASSERT_TRUE(loader.next(batch));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // prefetching moves on, the cursor does not
    EXPECT_EQ(loader.cursor(), want);
  }
  options.start = {0, 30};  // no whole batch is left there
  Loader late(noise_set(35, 5, 1), options);
  EXPECT_EQ(late.cursor(), (Cursor{1, 0}));
}

TEST(Loader, MixesLabelsAsItMixesImages) {
  const ImageSetPtr set = noise_set(40, 5, 1);
  LoaderOptions options;
  options.batch_size = 7;
  options.seed = 4;
  options.epochs = 1;
  options.threads = 2;
  const std::vector<Batch> plain = all_batches(set, options);
  options.augment.mixup = 0.8;
  const std::vector<Batch> mixed = all_batches(set, options);
  ASSERT_EQ(mixed.size(), plain.size());
  for (std::size_t b = 0; b < plain.size(); ++b) {
    const float weight = mixed[b].weights[0];
    EXPECT_TRUE(mixed[b].mixed);
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(mixed[b].labels[i], plain[b].labels[i]);
      EXPECT_EQ(mixed[b].other_labels[i], plain[b].labels[6 - i]);
      for (std::size_t p = 0; p < 120; ++p)
        EXPECT_NEAR(mixed[b].images[120 * i + p],
                    weight * plain[b].images[120 * i + p] + (1.0f - weight) * plain[b].images[120 * (6 - i) + p],
                    1e-6f);
    }
  }
  EXPECT_NE(mixed[0].weights[0], mixed[1].weights[0]);
}

TEST(Loader, OneShiftForAWholeBatch) {
  MemoryImages images{.name = "spot", .class_names = {"a"}, .images = {}, .labels = std::vector<int>(64, 0)};
  Image spot;
  spot.resize(9, 9, 1);
  std::fill(spot.pixels.begin(), spot.pixels.end(), std::uint8_t{0});
  spot.row(4)[4] = 255;
  images.images.assign(64, spot);
  LoaderOptions options;
  options.batch_size = 8;
  options.epochs = 4;
  options.augment.shift = 2;
  std::set<std::pair<std::size_t, std::size_t>> places;
  for (const Batch& batch : all_batches(images_in_memory(images), options)) {
    const auto at = static_cast<std::size_t>(std::max_element(batch.images.begin(), batch.images.begin() + 81) -
                                             batch.images.begin());
    for (std::size_t i = 0; i < 8; ++i)
      for (std::size_t p = 0; p < 81; ++p) EXPECT_EQ(batch.images[81 * i + p], p == at ? 1.0f : 0.0f);
    EXPECT_TRUE(at / 9 >= 2 && at / 9 <= 6 && at % 9 >= 2 && at % 9 <= 6);
    places.insert({at / 9, at % 9});
  }
  EXPECT_GT(places.size(), 10u);
}

TEST(Loader, RanksShareAnEpoch) {
  const ImageSetPtr set = noise_set(53, 5, 1);
  LoaderOptions options;
  options.batch_size = 4;
  options.epochs = 1;
  options.drop_last = false;
  options.ranks = 3;
  std::vector<std::int64_t> items(53, -1);
  for (int rank = 0; rank < 3; ++rank) {
    options.rank = rank;
    for (const Batch& batch : all_batches(set, options))
      for (std::size_t i = 0; i < batch.items.size(); ++i)
        items[static_cast<std::size_t>(batch.position) + i] = batch.items[i];
  }
  EXPECT_EQ(items, epoch_order(53, 0, 0, true, 1));
  options.drop_last = true;
  for (int rank = 0; rank < 3; ++rank) {
    options.rank = rank;
    EXPECT_EQ(all_batches(set, options).size(), 4u);  // 12 of 53 each time
  }
}

TEST(Loader, RanksTakeSeveralBatchesInARow) {
  const ImageSetPtr set = noise_set(53, 5, 3, 20, 16);
  LoaderOptions options = busy_options(2);
  options.epochs = 2;
  const std::vector<Batch> alone = all_batches(set, options);  // 26 an epoch
  options.ranks = 3, options.per_rank = 4;                     // 2 times 3 times 4 of them
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    const std::vector<Batch> mine = all_batches(set, options);
    ASSERT_EQ(mine.size(), 16u);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t epoch = i / 8, window = i % 8 / 4, turn = i % 4;
      const Batch& same = alone[26 * epoch + 12 * window + 4 * static_cast<std::size_t>(options.rank) + turn];
      EXPECT_EQ(mine[i].items, same.items);
      EXPECT_EQ(mine[i].images, same.images);
      if (turn == 3) {
        EXPECT_EQ(mine[i].next.position, window == 0 ? 24 : 0);
      }
    }
  }
}

TEST(Loader, RepeatedAugmentationGivesDifferentViews) {
  LoaderOptions options = busy_options(6);
  options.augment.mixup = options.augment.cutmix = 0.0;
  options.repeats = 3;
  options.epochs = 1;
  const std::vector<Batch> batches = all_batches(noise_set(36, 5, 3, 20, 16), options);
  ASSERT_EQ(batches.size(), 6u);
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.items[0], batch.items[1]);
    EXPECT_EQ(batch.items[1], batch.items[2]);
    EXPECT_NE(batch.items[2], batch.items[3]);
    const std::size_t floats = 3 * 14 * 12;
    EXPECT_FALSE(std::equal(batch.images.begin(), batch.images.begin() + floats, batch.images.begin() + floats));
  }
}

TEST(Loader, DamagedImagesAreCountedNamedAndLeftOut) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(60, 5, 1), 10);  // 0, 10, ..., 50
  LoaderOptions options;
  options.batch_size = 20;
  options.epochs = 2;
  options.threads = 3;
  options.max_damaged = 6;
  Loader loader(set, options);
  Batch batch;
  std::vector<std::string> named;
  std::int64_t images = 0;
  while (loader.next(batch)) {
    images += batch.size;
    EXPECT_EQ(batch.images.size(), static_cast<std::size_t>(batch.size) * 120);
    for (std::size_t i = 0; i < batch.items.size(); ++i) {
      EXPECT_NE(batch.items[i] % 10, 0);
      EXPECT_EQ(batch.labels[i], set->label(batch.items[i]));
      Image image;
      set->decode(batch.items[i], image);
      for (std::size_t p = 0; p < 120; ++p)
        ASSERT_FLOAT_EQ(batch.images[120 * i + p], static_cast<float>(image.pixels[p]) / 255.0f);
    }
    named.insert(named.end(), batch.damaged.begin(), batch.damaged.end());
  }
  EXPECT_EQ(images, 2 * 54);
  EXPECT_EQ(loader.damaged(), 6);
  EXPECT_EQ(named.size(), 6u);  // each once, also over epochs
  EXPECT_TRUE(std::count(named.begin(), named.end(), "item 30: damaged") == 1);
}

TEST(Loader, ABatchWithoutAnImageStillNamesThem) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(30, 5, 1), 10);  // 0, 10, 20
  LoaderOptions options;
  options.batch_size = 1, options.epochs = 2, options.threads = 1, options.shuffle = false, options.give_empty = true;
  Loader loader(set, options);
  std::vector<std::string> named;
  std::int64_t images = 0;
  for (Batch batch; loader.next(batch);) {
    images += batch.size;
    EXPECT_EQ(batch.size == 0 && batch.epoch == 0, !batch.damaged.empty());
    EXPECT_EQ(batch.items.size(), static_cast<std::size_t>(batch.size));
    named.insert(named.end(), batch.damaged.begin(), batch.damaged.end());
  }
  EXPECT_EQ(images, 2 * 27);
  EXPECT_EQ(named.size(), 3u);  // the second epoch has nothing to tell
}

TEST(Loader, DamageOfBeforeCounts) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(60, 5, 1), 10);
  LoaderOptions options;
  options.batch_size = 20, options.epochs = 1, options.max_damaged = 6, options.known_damaged = {0, 20, 40};
  Loader loader(set, options);
  Batch batch;
  std::size_t told = 0;
  while (loader.next(batch)) told += batch.damaged.size();
  EXPECT_EQ(told, 3u);
  EXPECT_EQ(loader.damaged_items(), (std::vector<std::int64_t>{0, 10, 20, 30, 40, 50}));
  options.max_damaged = 5;
  Loader strict(set, options);
  EXPECT_TRUE(has(message_of([&] {
                    while (strict.next(batch)) {
                    }
                  }),
                  "6 damaged images in damaged, more than the 5"));
}

TEST(Loader, TooMuchDamageIsAnErrorAtTheSamePlace) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(60, 5, 1), 10);
  std::string first;
  int batches = -1;
  for (const int threads : {1, 4}) {
    LoaderOptions options;
    options.batch_size = 5;
    options.threads = threads;
    options.max_damaged = 3;
    Loader loader(set, options);
    Batch batch;
    int count = 0;
    const std::string said = message_of([&] {
      for (; loader.next(batch);) ++count;
    });
    EXPECT_TRUE(has(said, "loader: 4 damaged images in damaged, more than the 3 that may be left out: item ")) << said;
    if (batches < 0) batches = count, first = said;
    EXPECT_EQ(count, batches);
    EXPECT_EQ(said, first);
    EXPECT_EQ(message_of([&] { loader.next(batch); }), said);  // and it stays so
  }
}

TEST(Loader, ASetWithoutAGoodImageIsAnError) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(10, 2, 1), 1);
  LoaderOptions options;
  options.batch_size = 4;  // without end: two items of every epoch are left out
  Batch batch;
  for (const bool known : {false, true}) {
    if (known) options.known_damaged = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    Loader loader(set, options);
    const std::string said = message_of([&] { loader.next(batch); });
    EXPECT_TRUE(has(said, "loader: none of the 10 images of damaged can be read: item ")) << said;
  }
}

TEST(Loader, ABatchWithoutAGoodImageIsPassedOver) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(9, 3, 1), 3);  // 0, 3, 6
  LoaderOptions options;
  options.batch_size = 1;
  options.epochs = 1;
  options.shuffle = false;
  EXPECT_EQ(all_batches(set, options).size(), 6u);
  const ImageSetPtr nothing = std::make_shared<DamagedSet>(noise_set(9, 3, 1), 1);
  EXPECT_TRUE(all_batches(nothing, options).empty());
}

TEST(Loader, WhatCannotBeAugmentedIsAnError) {
  LoaderOptions options;
  options.batch_size = 5;
  options.threads = 3;
  options.augment.fit = Fit::kPad;
  options.augment.height = options.augment.width = 20;
  Loader loader(noise_set(30, 3, 1, 18, 10, 5), options);  // some are 22 rows high
  Batch batch;
  EXPECT_TRUE(has(message_of([&] {
                    while (loader.next(batch)) {
                    }
                  }),
                  " pixels do not fit 20 x 20 by padding"));
}

TEST(Loader, StopsWhileWorkIsUnderWay) {
  const ImageSetPtr set = std::make_shared<DamagedSet>(noise_set(500, 5, 3, 20, 16), 11);
  for (int round = 0; round < 20; ++round) {
    LoaderOptions options = busy_options(16);
    options.threads = 1 + round % 4;
    options.prefetch = 1 + round % 5;
    Loader loader(set, options);
    Batch batch;
    for (int i = 0; i < round % 3; ++i) ASSERT_TRUE(loader.next(batch));
  }
}

TEST(Loader, WrongOptionsAreNamed) {
  const ImageSetPtr set = noise_set(20, 5, 1), varied = noise_set(20, 5, 3, 12, 10, 3);
  const auto said = [](const ImageSetPtr& images, auto change) {
    LoaderOptions options;
    options.batch_size = 4;
    change(options);
    return message_of([&] { Loader(images, options); });
  };
  EXPECT_EQ(said(set, [](LoaderOptions&) {}), "nothing was thrown");
  EXPECT_TRUE(has(said(nullptr, [](LoaderOptions&) {}), "loader: set is null"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.batch_size = 0; }), "loader: batch_size is 0"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.batch_size = 21; }), "20 items, fewer than 1 batches of 21"));
  EXPECT_TRUE(has(said(set,
                       [](LoaderOptions& o) {
                         o.start = {0, 21};
                       }),
                  "position 21, expected a position up to the 20"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.rank = 1; }), "rank 1 of 1 ranks"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.prefetch = 0; }), "prefetch is 0"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.threads = -1; }), "threads is -1"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.repeats = 0; }), "repeats is 0"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.epochs = -1; }), "epochs is -1"));
  EXPECT_TRUE(has(said(set, [](LoaderOptions& o) { o.max_damaged = -1; }), "max_damaged is -1"));
  EXPECT_TRUE(
      has(said(varied, [](LoaderOptions&) {}), "augment.height is 0, but images of noise have different sizes"));
  EXPECT_TRUE(has(said(set,
                       [](LoaderOptions& o) {
                         o.augment.mean = o.augment.std = {1, 1, 1};
                       }),
                  "3 values of augment.mean, expected 1 or one for each of 1 channels"));
  EXPECT_TRUE(has(said(set,
                       [](LoaderOptions& o) {
                         o.augment.fit = Fit::kPad;
                         o.augment.height = o.augment.width = 8;
                       }),
                  "images of 12 x 10 cannot be padded to 8 x 8"));
}

}  // namespace
}  // namespace mhla
