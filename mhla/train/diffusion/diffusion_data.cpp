#include "mhla/train/diffusion/diffusion_data.h"

#include "mhla/core/error.h"
#include "mhla/core/memory.h"
#include "mhla/data/cached_images.h"
#include "mhla/data/preprocess.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

ImageChoice images_chosen_by(const DiffusionOptions& o) {
  return {.data = o.data,
          .train_images = o.train_images,
          .test_images = o.test_images.value_or(0),
          .hold_out = o.hold_out,
          .test_seed = o.test_seed,
          .seed = o.train.seed};
}

ImageData with_usual_test(ImageData data, const DiffusionOptions& o) {
  if (!o.test_images && data.test->size() > DiffusionOptions::kUsualTest)
    data.test = subset(data.test, DiffusionOptions::kUsualTest, static_cast<std::uint64_t>(o.test_seed));
  return data;
}

// Files are decoded once where half of the memory holds what becomes of them.
ImageSetPtr kept_in_memory(const ImageSetPtr& set, Augment& augment) {
  if (set->kind() != "folder" || 2 * cached_bytes(*set, augment) > static_cast<double>(memory_at_hand().bytes))
    return set;
  ImageSetPtr cached = cached_images(set, augment);
  augment.fit = Fit::kResize;  // they have their size
  return cached;
}

LoaderOptions loader_options_of(const DiffusionOptions& o, const Augment& augment) {
  LoaderOptions loader;
  set_share(loader, o.train);
  loader.seed = static_cast<std::uint64_t>(o.train.seed);
  loader.threads = static_cast<int>(o.train.threads);
  loader.max_damaged = o.max_damaged;
  loader.augment = augment;
  return loader;
}

SampleBatch samples_of(const Batch& batch, const torch::Device& device) {
  SampleBatch samples;
  samples.x = images_of(batch, device), samples.labels = batch.labels, samples.items = batch.items;
  samples.epoch = batch.epoch, samples.position = batch.position;
  return samples;
}

class TrainingPixels final : public TrainingSamples {
 public:
  TrainingPixels(const ImageSetPtr& set, Augment augment, const DiffusionOptions& o)
      : device_(device_of(o.train.device)),
        set_(kept_in_memory(set, augment)),
        batches_(set_, loader_options_of(o, augment)) {}
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return batches_.per_epoch(); }
  SampleBatch next(std::vector<std::string>& warnings) override { return samples_of(batches_.next(warnings), device_); }
  [[nodiscard]] JsonValue cursor() const override { return batches_.cursor(); }
  void seek(const JsonValue& cursor) override { batches_.seek(cursor); }

 private:
  torch::Device device_;
  ImageSetPtr set_;
  ImageBatches batches_;
};

class HeldOutPixels final : public HeldOutSamples {
 public:
  HeldOutPixels(const ImageSetPtr& set, Augment augment, const DiffusionOptions& o)
      : device_(device_of(o.train.device)),
        set_(kept_in_memory(set, augment)),
        loader_(loader_options_of(o, without_chance(augment))) {
    loader_.per_rank = 1, loader_.epochs = 1, loader_.shuffle = loader_.drop_last = false;
    loader_.rank = o.train.place.rank, loader_.ranks = o.train.place.ranks;  // whole images for every process
  }
  [[nodiscard]] std::string name() const override { return set_->name(); }
  [[nodiscard]] std::int64_t size() const override { return set_->size(); }
  void each(std::vector<std::string>& warnings, const std::function<void(const SampleBatch&)>& visit) const override {
    Loader loader(set_, loader_);
    for (Batch batch; loader.next(batch);) {
      for (const std::string& text : batch.damaged) warnings.push_back("left out: " + text);
      if (batch.size > 0) visit(samples_of(batch, device_));
    }
  }

 private:
  torch::Device device_;
  ImageSetPtr set_;
  LoaderOptions loader_;
};

}  // namespace

std::string DiffusionSource::name() const {
  if (latents) return (latents->train_set ? latents->train_set : latents->test_set)->folder();
  return (images.train ? images.train : images.test)->name();
}

std::int64_t DiffusionSource::channels() const {
  return latents ? latents->test_set->config().shape[0] : images.test->channels();
}

std::vector<std::string> DiffusionSource::class_names() const {
  return latents ? latents->test_set->config().classes : images.test->class_names();
}

std::int64_t DiffusionSource::test_size() const {
  return latents ? static_cast<std::int64_t>(latents->test.size()) : images.test->size();
}

std::vector<std::string> DiffusionSource::warnings() const {
  std::vector<std::string> texts;
  if (latents) return texts;
  for (const ImageSetPtr& set : {images.train, images.test}) {
    const std::string text = left_out_warning(*set);
    if (!text.empty() && (set == images.train || !images.held_out)) texts.push_back(text);
  }
  return texts;
}

DiffusionSource open_source(const DiffusionOptions& o) {
  if (is_latent_data(o.data)) return {{}, std::make_shared<LatentData>(open_latents(o))};
  return {with_usual_test(open_images_of(images_chosen_by(o)), o), nullptr};
}

DiffusionSource open_held_out(const DiffusionOptions& o) {
  if (is_latent_data(o.data)) return open_source(o);
  return {with_usual_test(open_test_images_of(images_chosen_by(o)), o), nullptr};
}

DiffusionSource open_unseen(const DiffusionOptions& o) {
  if (is_latent_data(o.data)) return {{}, std::make_shared<LatentData>(open_latents(o, /*whole=*/true))};
  if (!needs_hold_out(o.data)) return open_held_out(o);
  ImageData all;
  all.test = open_images(o.data, Split::kTrain);
  return {with_usual_test(all, o), nullptr};
}

Augment augment_of(const DiffusionOptions& o, const DitConfig& network, const ImageSet& set) {
  Preprocess how;
  how.fit = o.fit;
  if (o.fit.empty()) {
    const bool no_larger =
        set.height() > 0 && set.height() <= network.image[0] && set.width() > 0 && set.width() <= network.image[1];
    how.fit = no_larger ? "pad" : "center_crop";
  }
  how.interpolation = "bicubic", how.crop_fraction = 1.0;
  how.mean = {0.5}, how.std = {0.5};
  Augment augment = labelled("train", [&] {
    return mhla::augment_of(how, static_cast<int>(network.image[0]), static_cast<int>(network.image[1]),
                            static_cast<int>(network.channels));
  });
  augment.flip = o.flip.value_or(0.0);
  return augment;
}

std::unique_ptr<TrainingSamples> training_samples(const DiffusionSource& source, const DiffusionOptions& o,
                                                  const NetworkConfig& network) {
  if (source.latents) return training_latents(*source.latents, o, network.takes_captions());
  return std::make_unique<TrainingPixels>(source.images.train, augment_of(o, network.dit(), *source.images.train), o);
}

std::unique_ptr<HeldOutSamples> held_out_samples(const DiffusionSource& source, const DiffusionOptions& o,
                                                 const NetworkConfig& network) {
  if (source.latents) return held_out_latents(*source.latents, o, network.takes_captions());
  return std::make_unique<HeldOutPixels>(source.images.test, augment_of(o, network.dit(), *source.images.test), o);
}

}  // namespace mhla::train
