#include "mhla/train/diffusion/diffusion_process.h"

#include <ATen/Parallel.h>

#include "mhla/data/philox.h"

namespace mhla::train {
namespace {

// [items, shape...] in host memory, a stream of Philox for every item.
torch::Tensor keyed(std::uint64_t seed, Philox::Purpose purpose, std::int64_t epoch,
                    const std::vector<std::int64_t>& items, at::IntArrayRef shape, bool pinned) {
  std::vector<std::int64_t> all{static_cast<std::int64_t>(items.size())};
  all.insert(all.end(), shape.begin(), shape.end());
  const torch::Tensor noise = torch::empty(all, torch::TensorOptions(torch::kFloat).pinned_memory(pinned));
  const std::int64_t count = items.empty() ? 0 : noise.numel() / all[0];
  auto* data = noise.data_ptr<float>();
  at::parallel_for(0, all[0], 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      Philox(seed, purpose, epoch, items[static_cast<std::size_t>(i)]).normals(data + i * count, count);
  });
  return noise;
}

}  // namespace

GenerationConfig generation_of(const DiffusionOptions& o, bool learn_sigma) {
  GenerationConfig g;
  g.process = o.process, g.schedule = o.noise_schedule, g.train_steps = o.noise_steps;
  g.learned_variance = learn_sigma, g.shift = o.shift;
  check(g);
  return g;
}

DiffusionProcess::DiffusionProcess(const GenerationConfig& generation, double logit_mean, double logit_std)
    : generation_(generation) {
  check(generation_);
  if (!generation_.is_flow()) {
    gaussian_.emplace(gaussian_options(generation_));
    return;
  }
  FlowOptions flow = flow_options(generation_);
  flow.logit_mean = logit_mean, flow.logit_std = logit_std;
  flow_.emplace(flow);
}

DiffusionProcess::DiffusionProcess(const DiffusionOptions& o, bool learn_sigma)
    : DiffusionProcess(generation_of(o, learn_sigma), o.logit_mean, o.logit_std) {}

DiffusionProcess::Loss DiffusionProcess::loss(Denoiser& model, const torch::Tensor& x_start, const torch::Tensor& noise,
                                              const torch::Tensor& index, const Conditioning& condition) const {
  if (flow_) {
    const torch::Tensor mse = flow_->loss(model, x_start, noise, index, condition);
    return {mse, mse, {}};
  }
  const GaussianDiffusion::Loss loss = gaussian_->loss(model, x_start, noise, index, condition);
  return {loss.total, loss.mse, loss.vb};
}

std::unique_ptr<Sampler> DiffusionProcess::sampler(std::int64_t steps, bool clip) const {
  SamplerOptions options;
  options.steps = steps, options.clip = clip;
  options.sampler = flow_ ? "euler" : "ddim";
  if (flow_) options.clip = false;
  return flow_ ? make_sampler(flow_options(generation_), options) : make_sampler(gaussian_->options(), options);
}

std::vector<std::int64_t> DiffusionProcess::draw_times(std::uint64_t seed, std::int64_t epoch,
                                                       const std::vector<std::int64_t>& items) const {
  std::vector<std::int64_t> times;
  std::vector<double> z;
  for (const std::int64_t item : items) {
    Philox random(seed, Philox::kTime, epoch, item);
    if (flow_)
      z.push_back(random.normal());
    else
      times.push_back(random.below(generation_.train_steps));
  }
  if (!flow_) return times;
  const torch::Tensor index = flow_->index_of(torch::tensor(z, torch::kDouble));
  return {index.data_ptr<std::int64_t>(), index.data_ptr<std::int64_t>() + index.numel()};
}

std::vector<std::int64_t> DiffusionProcess::times_to_judge(std::int64_t count) const {
  std::vector<std::int64_t> times;
  for (std::int64_t i = 0; i < count; ++i) times.push_back(generation_.train_steps * (7 * i + 2) / (7 * count + 2));
  return times;
}

std::vector<std::int64_t> drop_labels(std::vector<std::int64_t> labels, double dropout, std::int64_t null_class,
                                      std::uint64_t seed, std::int64_t epoch, const std::vector<std::int64_t>& items) {
  for (std::size_t i = 0; dropout > 0.0 && i < labels.size(); ++i) {
    if (Philox(seed, Philox::kDrop, epoch, items[i]).chance(dropout)) labels[i] = null_class;
  }
  return labels;
}

torch::Tensor training_noise(std::uint64_t seed, std::int64_t epoch, std::int64_t position,
                             const std::vector<std::int64_t>& items, at::IntArrayRef shape,
                             const torch::Device& device) {
  if (!device.is_cuda()) return keyed(seed, Philox::kTrainNoise, epoch, items, shape, /*pinned=*/false);
  std::vector<std::int64_t> all{static_cast<std::int64_t>(items.size())};
  all.insert(all.end(), shape.begin(), shape.end());
  Philox key(seed, Philox::kTrainNoise, epoch, position);
  const std::uint64_t high = key.bits(), low = key.bits();
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();  // ours: theirs is saved by others
  generator.set_current_seed(high << 32 | low);
  return torch::randn(all, generator, torch::TensorOptions(torch::kFloat).device(device));
}

torch::Tensor judging_noise(std::uint64_t seed, std::int64_t time, const std::vector<std::int64_t>& items,
                            at::IntArrayRef shape, const torch::Device& device) {
  return keyed(seed, Philox::kJudgeNoise, time, items, shape, device.is_cuda()).to(device, /*non_blocking=*/true);
}

}  // namespace mhla::train
