// Parts of a set, and a set in memory. A part takes the same share of every class, chosen by the seed.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "mhla/core/error.h"
#include "mhla/data/image_set.h"
#include "mhla/data/philox.h"
#include "mhla/io/crc32c.h"

namespace mhla {
namespace {

class Part final : public ImageSet {
 public:
  Part(ImageSetPtr whole, std::vector<std::int64_t> items, std::string name)
      : whole_(std::move(whole)), items_(std::move(items)), name_(std::move(name)) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string kind() const override { return whole_->kind(); }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(items_.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return whole_->class_names(); }
  [[nodiscard]] int channels() const override { return whole_->channels(); }
  [[nodiscard]] int height() const override { return whole_->height(); }
  [[nodiscard]] int width() const override { return whole_->width(); }
  [[nodiscard]] int label(std::int64_t item) const override { return whole_->label(at(item)); }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return whole_->item_name(at(item)); }
  void decode(std::int64_t item, Image& image) const override { whole_->decode(at(item), image); }
  [[nodiscard]] std::vector<LeftOut> left_out() const override { return whole_->left_out(); }

 private:
  [[nodiscard]] std::int64_t at(std::int64_t item) const { return items_[static_cast<std::size_t>(item)]; }
  ImageSetPtr whole_;
  std::vector<std::int64_t> items_;
  std::string name_;
};

// The items of every class, each class in a random order.
std::vector<std::vector<std::int64_t>> shuffled_classes(const ImageSet& set, std::uint64_t seed) {
  std::vector<std::vector<std::int64_t>> classes(static_cast<std::size_t>(set.classes()));
  for (std::int64_t item = 0; item < set.size(); ++item)
    classes[static_cast<std::size_t>(set.label(item))].push_back(item);
  for (std::size_t c = 0; c < classes.size(); ++c) {
    Philox random(seed, Philox::kSubset, 0, static_cast<std::int64_t>(c));
    for (std::size_t left = classes[c].size(); left > 1; --left)
      std::swap(classes[c][left - 1],
                classes[c][static_cast<std::size_t>(random.below(static_cast<std::int64_t>(left)))]);
  }
  return classes;
}

// How many of each class: its share rounded down, the rest to those that lost most by that, lower classes first.
std::vector<std::int64_t> shares(const std::vector<std::vector<std::int64_t>>& classes, std::int64_t size,
                                 std::int64_t count) {
  std::vector<std::int64_t> share, lost;
  std::int64_t rest = count;
  for (const auto& items : classes) {
    const auto of_class = static_cast<std::int64_t>(items.size());
    share.push_back(of_class * count / size);
    lost.push_back(of_class * count % size);
    rest -= share.back();
  }
  std::vector<std::size_t> by_loss(classes.size());
  std::iota(by_loss.begin(), by_loss.end(), std::size_t{0});
  std::stable_sort(by_loss.begin(), by_loss.end(), [&](std::size_t a, std::size_t b) { return lost[a] > lost[b]; });
  for (std::size_t i = 0; rest > 0; ++i, --rest) ++share[by_loss[i]];
  return share;
}

class InMemory final : public ImageSet {
 public:
  explicit InMemory(MemoryImages images) : images_(std::move(images)) {
    const std::string at = str("images_in_memory: ", images_.name, ": ");
    if (images_.images.size() != images_.labels.size())
      fail(at, images_.images.size(), " images and ", images_.labels.size(), " labels, expected as many of both");
    if (images_.images.empty() || images_.class_names.empty()) fail(at, "no images or no class names");
    const Image& first = images_.images.front();
    height_ = first.height;
    width_ = first.width;
    for (std::size_t i = 0; i < images_.images.size(); ++i) {
      const Image& image = images_.images[i];
      if (image.channels != first.channels || (image.channels != 1 && image.channels != 3))
        fail(at, "image ", i, " has ", image.channels, " channels, expected those of the first, 1 or 3");
      if (images_.labels[i] < 0 || images_.labels[i] >= classes())
        fail(at, "label ", images_.labels[i], " of image ", i, ", expected 0 to ", classes() - 1);
      if (image.height != first.height || image.width != first.width) height_ = width_ = 0;
    }
  }
  [[nodiscard]] std::string name() const override { return images_.name; }
  [[nodiscard]] std::string kind() const override { return "memory"; }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(images_.images.size()); }
  [[nodiscard]] const std::vector<std::string>& class_names() const override { return images_.class_names; }
  [[nodiscard]] int channels() const override { return images_.images.front().channels; }
  [[nodiscard]] int height() const override { return height_; }
  [[nodiscard]] int width() const override { return width_; }
  [[nodiscard]] int label(std::int64_t item) const override { return images_.labels[static_cast<std::size_t>(item)]; }
  [[nodiscard]] std::string item_name(std::int64_t item) const override { return str(images_.name, ", item ", item); }
  void decode(std::int64_t item, Image& image) const override {
    image = images_.images[static_cast<std::size_t>(item)];
  }

 private:
  MemoryImages images_;
  int height_ = 0, width_ = 0;
};

}  // namespace

std::uint32_t labels_checksum(const ImageSet& set) {
  std::vector<std::int32_t> labels(static_cast<std::size_t>(set.size()));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = set.label(static_cast<std::int64_t>(i));
  return crc32c(std::as_bytes(std::span(labels)));
}

ImageSetPtr subset(ImageSetPtr set, std::int64_t count, std::uint64_t seed) {
  if (count < 1 || count > set->size())
    fail("subset: count is ", count, ", expected 1 to the ", set->size(), " of ", set->name());
  const auto classes = shuffled_classes(*set, seed);
  const std::vector<std::int64_t> share = shares(classes, set->size(), count);
  std::vector<std::int64_t> items;
  for (std::size_t c = 0; c < classes.size(); ++c)
    items.insert(items.end(), classes[c].begin(), classes[c].begin() + share[c]);
  std::sort(items.begin(), items.end());
  const std::string name = str(set->name(), ", ", count, " of ", set->size());
  return std::make_shared<Part>(std::move(set), std::move(items), name);
}

std::pair<ImageSetPtr, ImageSetPtr> hold_out(const ImageSetPtr& set, double fraction, std::uint64_t seed) {
  if (!(fraction > 0.0 && fraction < 1.0)) fail("hold_out: fraction is ", fraction, ", expected one between 0 and 1");
  std::vector<std::int64_t> kept, held;
  for (const auto& items : shuffled_classes(*set, seed)) {
    const auto cut = std::lround(fraction * static_cast<double>(items.size()));
    held.insert(held.end(), items.begin(), items.begin() + cut);
    kept.insert(kept.end(), items.begin() + cut, items.end());
  }
  if (kept.empty() || held.empty())
    fail("hold_out: fraction ", fraction, " of ", set->size(), " items leaves one side empty");
  std::sort(kept.begin(), kept.end());
  std::sort(held.begin(), held.end());
  const std::string name = set->name();
  return {std::make_shared<Part>(set, std::move(kept), str(name, ", kept")),
          std::make_shared<Part>(set, std::move(held), str(name, ", held out"))};
}

ImageSetPtr images_in_memory(MemoryImages images) { return std::make_shared<InMemory>(std::move(images)); }

}  // namespace mhla
