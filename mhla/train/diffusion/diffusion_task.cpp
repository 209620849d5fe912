#include "mhla/train/diffusion/diffusion_task.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/data/image_output.h"
#include "mhla/data/preprocess.h"
#include "mhla/diffusion/guidance.h"
#include "mhla/diffusion/sample.h"
#include "mhla/io/file.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

constexpr std::int64_t kLeastApart = 100;  // steps between two sheets, where the options leave it open

torch::Tensor longs(const std::vector<std::int64_t>& values, const torch::Device& device) {
  return to_device(values.data(), {static_cast<std::int64_t>(values.size())}, torch::kLong, device);
}

}  // namespace

DiffusionTask::DiffusionTask(const DiffusionOptions& options, const DiffusionSource& source,
                             const NetworkConfig& network)
    : options_(options),
      source_(source),
      device_(device_of(options.train.device)),
      process_(generation_of(options, network.learn_sigma(), source), options.logit_mean, options.logit_std),
      training_(training_samples(source, options, network)),
      held_out_(held_out_samples(source, options, network)),
      model_(network) {
  model_.module().to(device_);
  sharing_.emplace(model_.module(), options_.train);
  warnings_ = source_.warnings();
  if (network.takes_captions()) {
    const LatentSet& set = *source_.latents->test_set;
    std::vector<std::int64_t> first = source_.latents->test;
    first.resize(std::min<std::size_t>(first.size(), kShown));
    prompts_ = captions_of(set, first, device_), null_ = null_caption_of(set, device_);
  }
  if (!source_.latents || options_.sample_every.value_or(1) == 0) return;
  const std::string folder = options_.vae.empty() ? process_.generation().autoencoder : options_.vae;
  if (const auto config = std::filesystem::path(folder) / "config.json"; std::filesystem::exists(config)) {
    autoencoder_folder_ = folder;
    const LatentFormat format = latent_format(read_autoencoder_config(config));
    const LatentSetConfig& latents = source_.latents->test_set->config();
    if (format.channels != latents.shape[0] || !same_scale(format.scale, latents.scale))
      fail("train: ", folder, " has latents of ", format.channels, " channels scaled by ", format.scale,
           ", expected the ", latents.shape[0], " and ", latents.scale, " of the data");
  } else if (!options_.vae.empty()) {
    fail("train: vae is ", folder, ", expected a folder with the config.json and weights of an autoencoder");
  } else {
    warnings_.push_back(str("no samples will be shown: the autoencoder of the latents, ",
                            folder.empty() ? "which has no name" : folder, ", is not there; --vae names its folder"));
  }
}

void DiffusionTask::show(const Conditioning& prompts) {
  prompts_ = prompts.each(
      [&](const torch::Tensor& all) { return all.narrow(0, 0, std::min(all.size(0), kShown)).to(device_); });
}

void DiffusionTask::write_companions(const std::filesystem::path& folder) const {
  if (!model_.config().takes_captions()) keep_classes(folder, source_.class_names());
  if (!source_.latents) {
    const Preprocess preprocess = preprocess_of(augment_of(options_, model_.config().dit(), *source_.images.train));
    write_file(folder / kPreprocessFile, preprocess_text(fields_to_json(preprocess)));
  }
  write_generation_config(folder, process_.generation());
}

Conditioning DiffusionTask::with_dropped(const SampleBatch& batch) const {
  constexpr std::int64_t kKept = 0, kDropped = 1;
  const std::vector<std::int64_t> dropped =
      drop_labels(std::vector<std::int64_t>(batch.items.size(), kKept), *options_.label_dropout, kDropped,
                  static_cast<std::uint64_t>(options_.train.seed), batch.epoch, batch.items);
  const torch::Tensor drop = longs(dropped, device_).to(torch::kBool).unsqueeze(1);  // [B, 1]
  return {{},
          torch::where(drop.unsqueeze(2), null_.captions, batch.captions.captions),
          torch::where(drop, null_.captions_mask, batch.captions.captions_mask)};
}

TrainBatch DiffusionTask::next_batch() {
  const SampleBatch next = training_->next(warnings_);
  const auto seed = static_cast<std::uint64_t>(options_.train.seed);
  Conditioning condition;
  if (model_.config().takes_captions()) {
    condition = with_dropped(next);
  } else {
    const DitConfig& network = model_.config().dit();
    condition.labels =
        longs(drop_labels(next.labels, network.label_dropout, network.classes, seed, next.epoch, next.items), device_);
  }
  const torch::Tensor noise =
      training_noise(seed, next.epoch, next.position, next.items, next.x.sizes().slice(1), device_);
  TrainBatch batch{
      .inputs = {next.x, condition.labels, longs(process_.draw_times(seed, next.epoch, next.items), device_), noise},
      .weight = next.x.size(0)};
  if (condition.captions.defined())
    batch.inputs.insert(batch.inputs.end(), {condition.captions, condition.captions_mask});
  return batch;
}

BatchResult DiffusionTask::forward(const TrainBatch& batch) {
  Conditioning condition{batch.inputs.at(1), {}, {}};
  if (batch.inputs.size() > 4) condition.captions = batch.inputs[4], condition.captions_mask = batch.inputs.at(5);
  const DiffusionProcess::Loss loss =
      process_.loss(model_.denoiser(), batch.inputs.at(0), batch.inputs.at(3), batch.inputs.at(2), condition);
  BatchResult result{.loss = loss.total.mean(), .sums = {}};
  if (loss.vb.defined()) result.sums = {{"mse", loss.mse.detach().sum()}, {"vb", loss.vb.detach().sum()}};
  return result;
}

std::string DiffusionTask::tested_on() const {
  return str(held_out_->size(), " images", source_.held_out() ? " held out of the training set" : "");
}

Metrics DiffusionTask::evaluate(const EvalProgress& progress) {
  const DenoisingScore now = denoising_score(model_, *held_out_, process_, options_, progress);
  warnings_.insert(warnings_.end(), now.warnings.begin(), now.warnings.end());
  Metrics metrics{{"mse", now.mse}, {"mse_se", now.mse_se}};
  if (process_.generation().learned_variance)
    metrics.emplace_back("vb", now.vb), metrics.emplace_back("loss", now.loss);
  return metrics;
}

std::int64_t DiffusionTask::picture_every(std::int64_t total_steps) const {
  if (source_.latents && autoencoder_folder_.empty()) return 0;
  return options_.sample_every.value_or(std::max(kLeastApart, total_steps / 10));
}

Conditioning DiffusionTask::shown(std::int64_t rows, std::int64_t columns) const {
  std::vector<std::int64_t> kinds;
  const std::int64_t all = prompts_.captions.defined() ? rows : model_.config().dit().classes;
  for (std::int64_t i = 0; i < rows * columns; ++i) kinds.push_back(i / columns * all / rows);
  const torch::Tensor chosen = longs(kinds, device_);
  if (!prompts_.captions.defined()) return {chosen, {}, {}};
  return prompts_.each([&](const torch::Tensor& states) { return states.index_select(0, chosen); });
}

Image DiffusionTask::picture(const EvalProgress& progress) {
  const NetworkConfig& c = model_.config();
  const std::int64_t rows = c.takes_captions() ? prompts_.captions.size(0) : std::min(c.dit().classes, kShown),
                     columns = options_.sample_columns;
  SampleRequest request;
  request.shape = {c.channels(), c.image[0], c.image[1]};
  for (std::int64_t i = 0; i < rows * columns; ++i) request.numbers.push_back(i);
  request.condition = shown(rows, columns);
  request.device = device_;
  request.together = std::min<std::int64_t>(options_.train.batch, rows * columns);
  GuidanceOptions guidance;
  guidance.scale = c.takes_captions() || c.dit().has_null_class() ? options_.sample_guidance : 1.0;
  GuidedDenoiser guided(model_.denoiser(), guidance, null_);
  const std::unique_ptr<Sampler> sampler = process_.sampler(options_.sample_steps, /*clip=*/!source_.latents);
  torch::Tensor x = sample(guided, *sampler, request, [&](const SampleProgress& now) {
                      leave_when_stopped();
                      if (progress) progress(now.step, now.steps);
                    }).cpu();
  if (source_.latents) x = decoded(x);
  std::vector<Image> images;
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    const torch::Tensor one = x[i].contiguous();
    images.push_back(to_image({one.data_ptr<float>(), static_cast<std::size_t>(one.numel())},
                              static_cast<int>(one.size(0)), static_cast<int>(one.size(1)),
                              static_cast<int>(one.size(2))));
  }
  return image_grid(images, static_cast<int>(columns));
}

torch::Tensor DiffusionTask::decoded(const torch::Tensor& latents) {
  const LatentSetConfig& set = source_.latents->train_set->config();
  if (!autoencoder_) {
    at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
    const torch::Tensor state = generator.get_state();  // a network that is made draws from it
    autoencoder_ = load_autoencoder(autoencoder_folder_);
    generator.set_state(state);
    autoencoder_->to(device_);
    autoencoder_->eval();
  }
  std::vector<torch::Tensor> images;
  for (std::int64_t i = 0; i < latents.size(0); ++i) {
    leave_when_stopped();
    const torch::Tensor one = latents.narrow(0, i, 1).to(device_) / set.scale + set.shift;
    images.push_back(autoencoder_->decode_unscaled(one).to(torch::kFloat).cpu());
  }
  return torch::cat(images);
}

std::vector<std::string> DiffusionTask::take_warnings() { return std::exchange(warnings_, {}); }

}  // namespace mhla::train
