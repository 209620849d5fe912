// Cached latents as samples, with their labels or captions: read from their files when a batch needs them, the mirrored
// ones at random.
#include <ATen/Parallel.h>

#include "mhla/core/error.h"
#include "mhla/data/philox.h"
#include "mhla/data/split_items.h"
#include "mhla/train/diffusion/diffusion_data.h"
#include "mhla/train/item_order.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const LatentSet> opened(const std::string& folder) {
  auto set = std::make_shared<const LatentSet>(LatentSet::open(folder));
  const LatentSetConfig& c = set->config();
  if (!c.has_latents()) fail("train: ", folder, " has no latents, expected those of images with classes or captions");
  return set;
}

// Sets of captions have no classes: all of their items are alike.
int label_in(const LatentSet& set, std::int64_t item) {
  return set.config().has_labels() ? static_cast<int>(set.label(item)) : 0;
}

int classes_in(const LatentSet& set) {
  return set.config().has_labels() ? static_cast<int>(set.config().classes.size()) : 1;
}

std::vector<int> labels_in(const LatentSet& set) {
  std::vector<int> labels;
  for (std::int64_t item = 0; item < set.size(); ++item) labels.push_back(label_in(set, item));
  return labels;
}

std::vector<std::int64_t> all_of(const LatentSet& set) {
  std::vector<std::int64_t> items(static_cast<std::size_t>(set.size()));
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = static_cast<std::int64_t>(i);
  return items;
}

// `count` of the items, the same share of every class; 0: all.
void cut(const LatentSet& set, std::vector<std::int64_t>& items, std::int64_t count, std::int64_t seed,
         const char* field) {
  const auto size = static_cast<std::int64_t>(items.size());
  if (count < 0 || count > size)
    fail("train: ", field, " is ", count, ", expected 0 to the ", size, " of ", set.folder());
  if (count == 0 || count == size) return;
  std::vector<int> labels;
  for (const std::int64_t item : items) labels.push_back(label_in(set, item));
  std::vector<std::int64_t> chosen;
  for (const std::int64_t at : subset_items(labels, classes_in(set), count, static_cast<std::uint64_t>(seed)))
    chosen.push_back(items[static_cast<std::size_t>(at)]);
  items = chosen;
}

// [items, C, H, W] where the model is; `flips` may be empty.
torch::Tensor read_latents(const LatentSet& set, const std::vector<std::int64_t>& items, const std::vector<char>& flips,
                           const torch::Device& device) {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(items.size())};
  shape.insert(shape.end(), set.config().shape.begin(), set.config().shape.end());
  const torch::Tensor host = torch::empty(shape, torch::TensorOptions(torch::kFloat).pinned_memory(device.is_cuda()));
  auto* data = host.data_ptr<float>();
  at::parallel_for(0, shape[0], 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto at = static_cast<std::size_t>(i);
      set.latent(items[at], !flips.empty() && flips[at] != 0, data + i * set.latent_size());
    }
  });
  return host.to(device, /*non_blocking=*/true);
}

std::vector<std::int64_t> labels_at(const LatentSet& set, const std::vector<std::int64_t>& items) {
  std::vector<std::int64_t> labels;
  for (const std::int64_t item : items) labels.push_back(set.label(item));
  return labels;
}

// What the items of a batch show.
void add_condition(const LatentSet& set, const std::vector<std::int64_t>& items, bool captions,
                   const torch::Device& device, SampleBatch& batch) {
  if (captions)
    batch.captions = captions_of(set, items, device);
  else
    batch.labels = labels_at(set, items);
}

class TrainingLatents final : public TrainingSamples {
 public:
  TrainingLatents(const LatentData& data, const DiffusionOptions& o, bool captions)
      : device_(device_of(o.train.device)),
        captions_(captions),
        set_(data.train_set),
        items_(data.train),
        order_(static_cast<std::int64_t>(items_.size()), "latents of " + set_->folder(), o.train),
        seed_(static_cast<std::uint64_t>(o.train.seed)),
        flip_(o.flip.value_or(0.0)) {}
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return order_.batches_per_epoch(); }
  SampleBatch next(std::vector<std::string>&) override {
    ItemOrder::Part part = order_.next();
    SampleBatch batch;
    batch.epoch = part.epoch, batch.position = part.position, batch.items = std::move(part.items);
    std::vector<std::int64_t> stored;  // their numbers in the set
    std::vector<char> flips;
    for (const std::int64_t item : batch.items) {
      stored.push_back(items_[static_cast<std::size_t>(item)]);
      flips.push_back(flip_ > 0.0 && Philox(seed_, Philox::kItem, batch.epoch, item).chance(flip_) ? 1 : 0);
    }
    add_condition(*set_, stored, captions_, device_, batch);
    batch.x = read_latents(*set_, stored, flips, device_);
    return batch;
  }
  [[nodiscard]] JsonValue cursor() const override { return order_.cursor().set("items", set_->config().items); }
  void seek(const JsonValue& cursor) override {
    order_.seek(cursor);
    if (cursor.at("items").as_string() != set_->config().items)
      fail("train: ", set_->folder(), " has latents of other images than the data of the run, or in another order");
  }

 private:
  torch::Device device_;
  bool captions_;
  std::shared_ptr<const LatentSet> set_;
  std::vector<std::int64_t> items_;
  ItemOrder order_;
  std::uint64_t seed_;
  double flip_;
};

class HeldOutLatents final : public HeldOutSamples {
 public:
  HeldOutLatents(const LatentData& data, const DiffusionOptions& o, bool captions)
      : device_(device_of(o.train.device)),
        captions_(captions),
        set_(data.test_set),
        items_(data.test),
        place_(o.train.place),
        batch_(share_of(o.train).each) {}
  [[nodiscard]] std::string name() const override { return set_->folder(); }
  [[nodiscard]] std::int64_t size() const override { return static_cast<std::int64_t>(items_.size()); }
  void each(std::vector<std::string>&, const std::function<void(const SampleBatch&)>& visit) const override {
    for (std::int64_t first = place_.rank * batch_; first < size(); first += place_.ranks * batch_) {
      SampleBatch batch;
      std::vector<std::int64_t> stored;
      for (std::int64_t i = first; i < std::min(first + batch_, size()); ++i)
        batch.items.push_back(i), stored.push_back(items_[static_cast<std::size_t>(i)]);
      add_condition(*set_, stored, captions_, device_, batch);
      batch.x = read_latents(*set_, stored, {}, device_);
      visit(batch);
    }
  }

 private:
  torch::Device device_;
  bool captions_;
  std::shared_ptr<const LatentSet> set_;
  std::vector<std::int64_t> items_;
  Place place_;
  std::int64_t batch_;
};

// The folder with the held-out latents beside train/; empty: there is none.
std::string test_folder(const fs::path& data) {
  for (const char* name : {"val", "validation", "test"})
    if (is_latent_set((data / name).string())) return (data / name).string();
  return {};
}

}  // namespace

bool is_latent_data(const std::string& data) {
  return is_latent_set(data) || is_latent_set((fs::path(data) / "train").string());
}

LatentData open_latents(const DiffusionOptions& o, bool whole) {
  LatentData data;
  if (is_latent_set(o.data)) {
    data.train_set = data.test_set = opened(o.data);
    if (whole) {
      data.test = all_of(*data.test_set);
    } else {
      if (!(o.hold_out > 0 && o.hold_out < 1))
        fail("train: hold_out is ", o.hold_out, ", expected above 0 and below 1: ", o.data, " has no test set");
      std::tie(data.train, data.test) = hold_out_items(labels_in(*data.train_set), classes_in(*data.train_set),
                                                       o.hold_out, static_cast<std::uint64_t>(o.test_seed));
      data.held_out = true;
    }
  } else {
    const std::string test = test_folder(o.data);
    if (test.empty()) fail("train: ", o.data, " has latents in train, expected others in val or test beside it");
    data.train_set = opened((fs::path(o.data) / "train").string()), data.test_set = opened(test);
    data.train = all_of(*data.train_set), data.test = all_of(*data.test_set);
    const LatentSetConfig &a = data.train_set->config(), &b = data.test_set->config();
    if (a.shape != b.shape || a.classes != b.classes || a.captions != b.captions || a.scale != b.scale ||
        a.shift != b.shift)
      fail("train: ", test, " differs from ", data.train_set->folder(),
           " in its shape, classes, captions, scale or shift, expected latents of one encoding");
  }
  if (data.test.empty()) fail("train: hold_out ", o.hold_out, " of ", o.data, " leaves nothing to evaluate on");
  const auto held = static_cast<std::int64_t>(data.test.size());
  cut(*data.test_set, data.test, o.test_images.value_or(std::min(held, DiffusionOptions::kUsualTest)), o.test_seed,
      "test_images");
  if (!data.train.empty()) cut(*data.train_set, data.train, o.train_images, o.train.seed, "train_images");
  if (o.flip.value_or(0.0) > 0.0 && !data.train_set->config().flipped)
    fail("train: flip is ", *o.flip, ", but ", data.train_set->folder(), " has no latents of mirrored images");
  return data;
}

std::unique_ptr<TrainingSamples> training_latents(const LatentData& data, const DiffusionOptions& o, bool captions) {
  return std::make_unique<TrainingLatents>(data, o, captions);
}

std::unique_ptr<HeldOutSamples> held_out_latents(const LatentData& data, const DiffusionOptions& o, bool captions) {
  return std::make_unique<HeldOutLatents>(data, o, captions);
}

Conditioning captions_of(const LatentSet& set, const std::vector<std::int64_t>& items, const torch::Device& device) {
  const std::vector<std::int64_t>& size = set.config().captions;
  const auto count = static_cast<std::int64_t>(items.size());
  const auto host = torch::TensorOptions().pinned_memory(device.is_cuda());
  const torch::Tensor states = torch::empty({count, size[0], size[1]}, host.dtype(torch::kFloat)),
                      mask = torch::empty({count, size[0]}, host.dtype(torch::kLong));
  auto* const numbers = states.data_ptr<float>();
  auto* const seen = mask.data_ptr<std::int64_t>();
  at::parallel_for(0, count, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      set.caption(items[static_cast<std::size_t>(i)], numbers + i * set.caption_size(), seen + i * size[0]);
  });
  return {{}, states.to(device, /*non_blocking=*/true), mask.to(device, /*non_blocking=*/true)};
}

Conditioning null_caption_of(const LatentSet& set, const torch::Device& device) {
  const std::vector<std::int64_t>& size = set.config().captions;
  const torch::Tensor states = torch::empty({1, size[0], size[1]}), mask = torch::empty({1, size[0]}, torch::kLong);
  set.null_caption(states.data_ptr<float>(), mask.data_ptr<std::int64_t>());
  return {{}, states.to(device), mask.to(device)};
}

}  // namespace mhla::train
