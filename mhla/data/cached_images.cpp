#include "mhla/data/cached_images.h"

#include <atomic>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/data/augment_item.h"

namespace mhla {
namespace {

class CachedImages final : public ImageSet {
 public:
  CachedImages(ImageSetPtr set, const Augment& augment)
      : set_(std::move(set)), augment_(augment), augmenter_(augment), bytes_(bytes_of(augment)) {
    const auto count = static_cast<std::size_t>(set_->size());
    pixels_.reset(new std::uint8_t[count * bytes_]);  // not touched: pages come as they fill
    states_ = std::make_unique<std::atomic<State>[]>(count);
    for (std::size_t i = 0; i < count; ++i) states_[i].store(State::kEmpty, std::memory_order_relaxed);
  }
  [[nodiscard]] std::string name() const override { return set_->name(); }
  [[nodiscard]] std::string kind() const override { return set_->kind(); }
  [[nodiscard]] std::int64_t size() const override { return set_->size(); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return set_->class_names(); }
  [[nodiscard]] int channels() const override { return augment_.channels; }
  [[nodiscard]] int height() const override { return augment_.height; }
  [[nodiscard]] int width() const override { return augment_.width; }
  [[nodiscard]] int label(std::int64_t item) const override { return set_->label(item); }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return set_->item_name(item); }
  [[nodiscard]] std::vector<LeftOut> left_out() const override { return set_->left_out(); }

  void decode(std::int64_t item, Image& image) const override {
    const auto at = static_cast<std::size_t>(item);
    std::uint8_t* kept = pixels_.get() + at * bytes_;
    if (states_[at].load(std::memory_order_acquire) == State::kFull) {
      image.resize(augment_.height, augment_.width, augment_.channels);
      std::memcpy(image.pixels.data(), kept, bytes_);
      return;
    }
    thread_local ItemScratch scratch;
    set_->decode(item, scratch.image);
    Philox nothing_random(0, Philox::kItem, 0, item);
    augmenter_.fit(scratch, nothing_random);
    convert_channels(scratch.image, augment_.channels);
    State empty = State::kEmpty;
    if (states_[at].compare_exchange_strong(empty, State::kBusy)) {  // else another thread keeps the same
      std::memcpy(kept, scratch.image.pixels.data(), bytes_);
      states_[at].store(State::kFull, std::memory_order_release);
    }
    std::swap(image, scratch.image);
  }

  static std::size_t bytes_of(const Augment& a) {
    return static_cast<std::size_t>(a.height) * static_cast<std::size_t>(a.width) *
           static_cast<std::size_t>(a.channels);
  }

 private:
  enum class State : std::uint8_t { kEmpty, kBusy, kFull };
  ImageSetPtr set_;
  Augment augment_;
  ItemAugmenter augmenter_;
  std::size_t bytes_;  // of an image
  std::unique_ptr<std::uint8_t[]> pixels_;
  std::unique_ptr<std::atomic<State>[]> states_;
};

}  // namespace

double cached_bytes(const ImageSet& set, const Augment& augment) {
  return static_cast<double>(set.size()) * static_cast<double>(CachedImages::bytes_of(augment));
}

ImageSetPtr cached_images(ImageSetPtr set, const Augment& augment) {
  check_augment(augment);
  if (augment.height < 1 || augment.width < 1 || augment.channels < 1)
    fail("cached_images: augment has size ", augment.height, " x ", augment.width, " and ", augment.channels,
         " channels, expected those of the result");
  if (augment.fit == Fit::kRandomCrop || augment.interpolation == Interpolation::kRandom)
    fail("cached_images: the fit of augment is random, expected one that is not");
  return std::make_shared<CachedImages>(std::move(set), augment);
}

}  // namespace mhla
