// Images that are kept after their first decoding: the bits of those that are not, decoded once.
#include "mhla/data/cached_images.h"

#include <gtest/gtest.h>

#include <atomic>

#include "mhla/data/data_fixture.h"
#include "mhla/data/loader.h"

namespace mhla {
namespace {

// Counts, and has one image that is damaged.
class Counting final : public ImageSet {
 public:
  explicit Counting(ImageSetPtr set) : set_(std::move(set)) {}
  [[nodiscard]] std::string name() const override { return set_->name(); }
  [[nodiscard]] std::string kind() const override { return "folder"; }
  [[nodiscard]] std::int64_t size() const override { return set_->size(); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return set_->class_names(); }
  [[nodiscard]] int channels() const override { return set_->channels(); }
  [[nodiscard]] int height() const override { return 0; }
  [[nodiscard]] int width() const override { return 0; }
  [[nodiscard]] int label(std::int64_t item) const override { return set_->label(item); }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return set_->item_name(item); }
  void decode(std::int64_t item, Image& image) const override {
    ++decoded;
    if (item == 5) fail("image 5: truncated");
    set_->decode(item, image);
  }
  mutable std::atomic<int> decoded{0};

 private:
  ImageSetPtr set_;
};

Augment to_size(Fit fit, int channels) {
  Augment augment;
  augment.height = 8, augment.width = 6, augment.channels = channels, augment.fit = fit;
  augment.crop_fraction = 1.0, augment.flip = 0.5;
  return augment;
}

std::vector<float> two_epochs(const ImageSetPtr& set, const Augment& augment, std::size_t& damaged, int threads) {
  LoaderOptions options;
  options.batch_size = 7, options.epochs = 2, options.threads = threads, options.drop_last = false;
  options.augment = augment;
  Loader loader(set, options);
  std::vector<float> all;
  for (Batch batch; loader.next(batch);) {
    all.insert(all.end(), batch.images.begin(), batch.images.begin() + batch.size * augment.channels * 48);
    damaged += batch.damaged.size();
  }
  return all;
}

TEST(CachedImages, HaveTheBitsOfOthersAndAreDecodedOnce) {
  for (const int channels : {3, 1}) {
    for (const Fit fit : {Fit::kCenterCrop, Fit::kResize, Fit::kPadOrResize}) {
      const auto set = std::make_shared<Counting>(noise_set(20, 2, 3, 12, 10, 4));
      const Augment augment = to_size(fit, channels);
      std::size_t damaged = 0, again = 0;
      const std::vector<float> want = two_epochs(set, augment, damaged, 2);
      set->decoded = 0;
      const ImageSetPtr cached = cached_images(set, augment);
      Augment of_its_size = augment;
      of_its_size.fit = Fit::kResize;
      EXPECT_TRUE(two_epochs(cached, of_its_size, again, 1) == want) << channels << " " << static_cast<int>(fit);
      EXPECT_EQ(again, damaged);
      EXPECT_EQ(set->decoded, 21);  // the damaged one in every epoch
      EXPECT_TRUE(two_epochs(cached_images(set, augment), of_its_size, again, 3) == want);
      EXPECT_EQ(cached_bytes(*set, augment), 20.0 * 48 * channels);
    }
  }
}

TEST(CachedImages, ChanceIsRefused) {
  const ImageSetPtr set = noise_set(4, 2, 3);
  EXPECT_TRUE(
      has(message_of([&] { cached_images(set, to_size(Fit::kRandomCrop, 3)); }), "the fit of augment is random"));
  EXPECT_TRUE(has(message_of([&] { cached_images(set, Augment{}); }), "size 0 x 0"));
}

}  // namespace
}  // namespace mhla
