// Held-out denoising loss: mean over images and times of (noise - predicted)^2, images and noise by number.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "mhla/core/error.h"
#include "mhla/train/diffusion/diffusion_task.h"
#include "mhla/train/shared_eval.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

// Items and losses of all processes, in the order of the items.
void share_items(const Place& place, std::vector<std::int64_t>& items, std::vector<torch::Tensor>& mse,
                 std::vector<torch::Tensor>& vb) {
  if (place.maybe_team == nullptr) return;
  std::vector<double> mine;
  if (!items.empty()) {
    const torch::Tensor losses = torch::stack({torch::cat(mse), torch::cat(vb)}, 1).cpu();  // [items, 2]
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto* pair = losses.data_ptr<double>() + 2 * i;
      mine.insert(mine.end(), {static_cast<double>(items[i]), pair[0], pair[1]});
    }
  }
  std::map<std::int64_t, std::pair<double, double>> by_item;
  for (const std::vector<double>& part : gather_evaluation(place, mine))
    for (std::size_t i = 0; i + 2 < part.size(); i += 3)
      by_item[static_cast<std::int64_t>(part[i])] = {part[i + 1], part[i + 2]};
  std::vector<double> all_mse, all_vb;
  items.clear();
  for (const auto& [item, losses] : by_item)
    items.push_back(item), all_mse.push_back(losses.first), all_vb.push_back(losses.second);
  mse = {torch::tensor(all_mse, torch::kDouble)}, vb = {torch::tensor(all_vb, torch::kDouble)};
}

}  // namespace

DenoisingScore denoising_score(const DiffusionModel& model, const HeldOutSamples& held_out,
                               const DiffusionProcess& process, const DiffusionOptions& options,
                               const EvalProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_gradient;
  const torch::Device device = device_of(options.train.device);
  const Autocast autocast(options.train, device);
  const auto seed = static_cast<std::uint64_t>(options.test_seed);
  const std::vector<std::int64_t> times = process.times_to_judge(options.eval_times);
  const bool was_training = model.module().is_training();
  model.module().eval();
  DenoisingScore score;
  score.times = options.eval_times;
  // Per image, summed over the times where the model is.
  std::vector<std::int64_t> items;
  std::vector<torch::Tensor> mse, vb;
  held_out.each(score.warnings, [&](const SampleBatch& batch) {
    leave_when_stopped();
    const std::int64_t B = batch.x.size(0);
    Conditioning condition = batch.captions;
    if (!model.config().takes_captions()) condition.labels = to_device(batch.labels.data(), {B}, torch::kLong, device);
    torch::Tensor mse_sum = torch::zeros({B}, torch::TensorOptions(torch::kDouble).device(device));
    torch::Tensor vb_sum = torch::zeros_like(mse_sum);
    for (const std::int64_t time : times) {
      const torch::Tensor noise = judging_noise(seed, time, batch.items, batch.x.sizes().slice(1), device);
      const torch::Tensor index = torch::full({B}, time, torch::TensorOptions(torch::kLong).device(device));
      const DiffusionProcess::Loss loss = process.loss(model.denoiser(), batch.x, noise, index, condition);
      mse_sum += loss.mse.to(torch::kDouble);
      if (loss.vb.defined()) vb_sum += loss.vb.to(torch::kDouble);
    }
    items.insert(items.end(), batch.items.begin(), batch.items.end());
    mse.push_back(mse_sum), vb.push_back(vb_sum);
    const auto done = static_cast<std::int64_t>(items.size()) * options.train.place.ranks;
    if (progress) progress(std::min(done, held_out.size()), held_out.size());
  });
  model.module().train(was_training);
  share_items(options.train.place, items, mse, vb);
  if (items.empty()) fail("eval: ", held_out.name(), " has no image that can be read");
  const auto times_count = static_cast<double>(times.size()), count = static_cast<double>(items.size());
  const torch::Tensor losses = (torch::cat(mse) / times_count).cpu(), bits = (torch::cat(vb) / times_count).cpu();
  score.images = static_cast<std::int64_t>(items.size()), score.damaged = held_out.size() - score.images;
  score.each.assign(static_cast<std::size_t>(held_out.size()), std::numeric_limits<double>::quiet_NaN());
  const auto* values = losses.data_ptr<double>();
  for (std::size_t i = 0; i < items.size(); ++i) score.each[static_cast<std::size_t>(items[i])] = values[i];
  score.mse = losses.mean().item<double>(), score.vb = bits.mean().item<double>();
  score.loss = score.mse + score.vb;
  const double variance = items.size() > 1 ? losses.var().item<double>() : 0.0;
  score.mse_se = std::sqrt(variance / count);
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

}  // namespace mhla::train
