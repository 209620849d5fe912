// Parts of a set, and a set in memory. A part takes the same share of every class, chosen by the seed.
#include "mhla/core/error.h"
#include "mhla/data/image_set.h"
#include "mhla/data/split_items.h"
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

std::vector<int> labels_of(const ImageSet& set) {
  std::vector<int> labels(static_cast<std::size_t>(set.size()));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = set.label(static_cast<std::int64_t>(i));
  return labels;
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
  const std::vector<int> labels = labels_of(set);
  static_assert(sizeof(int) == 4);
  return crc32c(std::as_bytes(std::span(labels)));
}

ImageSetPtr subset(ImageSetPtr set, std::int64_t count, std::uint64_t seed) {
  if (count < 1 || count > set->size())
    fail("subset: count is ", count, ", expected 1 to the ", set->size(), " of ", set->name());
  std::vector<std::int64_t> items = subset_items(labels_of(*set), set->classes(), count, seed);
  const std::string name = str(set->name(), ", ", count, " of ", set->size());
  return std::make_shared<Part>(std::move(set), std::move(items), name);
}

std::pair<ImageSetPtr, ImageSetPtr> hold_out(const ImageSetPtr& set, double fraction, std::uint64_t seed) {
  if (!(fraction > 0.0 && fraction < 1.0)) fail("hold_out: fraction is ", fraction, ", expected one between 0 and 1");
  auto [kept, held] = hold_out_items(labels_of(*set), set->classes(), fraction, seed);
  if (kept.empty() || held.empty())
    fail("hold_out: fraction ", fraction, " of ", set->size(), " items leaves one side empty");
  const std::string name = set->name();
  return {std::make_shared<Part>(set, std::move(kept), str(name, ", kept")),
          std::make_shared<Part>(set, std::move(held), str(name, ", held out"))};
}

ImageSetPtr images_in_memory(MemoryImages images) { return std::make_shared<InMemory>(std::move(images)); }

}  // namespace mhla
