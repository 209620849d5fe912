// Held-out loss of flow matching: mean over clips and times of (noise - clip - predicted)^2, clips and noise by number.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "mhla/core/error.h"
#include "mhla/train/shared_eval.h"
#include "mhla/train/trainer.h"
#include "mhla/train/video/video_task.h"

namespace mhla::train {

std::vector<double> video_times(std::int64_t count) {
  std::vector<double> times;
  for (std::int64_t i = 0; i < count; ++i)
    times.push_back(static_cast<double>(2 * i + 1) / static_cast<double>(2 * count));
  return times;
}

VideoScore video_score(WanImpl& model, const VideoItems& held_out, const VideoOptions& o,
                       const EvalProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const torch::NoGradGuard no_gradient;
  const torch::Device device = device_of(o.train.device);
  const Autocast autocast(o.train, device);
  const bool was_training = model.is_training();
  model.eval();
  VideoScore score;
  score.times = video_times(o.eval_times);
  std::vector<std::int64_t> items;
  std::vector<torch::Tensor> losses;  // [B, times] f64, where the model is
  each_held_out(held_out, o, score.warnings, [&](const VideoBatch& batch) {
    const std::int64_t B = batch.x.size(0);
    std::vector<torch::Tensor> by_time;
    for (const double s : score.times) {
      const torch::Tensor noise = judging_noise(static_cast<std::uint64_t>(o.test_seed), std::lround(1000 * s),
                                                batch.items, batch.x.sizes().slice(1), device);
      const torch::Tensor t = torch::full({B}, 1000 * s, torch::TensorOptions(torch::kFloat).device(device));
      const torch::Tensor velocity = model.forward((1 - s) * batch.x + s * noise, t, batch.captions);
      by_time.push_back(FlowMatching::loss(velocity.to(torch::kFloat), batch.x, noise).to(torch::kDouble));
    }
    losses.push_back(torch::stack(by_time, 1));
    items.insert(items.end(), batch.items.begin(), batch.items.end());
    const auto done = static_cast<std::int64_t>(items.size()) * o.train.place.ranks;
    if (progress) progress(std::min(done, held_out.size()), held_out.size());
  });
  model.train(was_training);
  const auto width = static_cast<std::int64_t>(score.times.size());
  std::vector<double> mine;  // an item, then its losses
  if (!items.empty()) {
    const torch::Tensor rows = torch::cat(losses).cpu();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto* row = rows.data_ptr<double>() + static_cast<std::int64_t>(i) * width;
      mine.push_back(static_cast<double>(items[i]));
      mine.insert(mine.end(), row, row + width);
    }
  }
  std::map<std::int64_t, std::vector<double>> by_item;
  for (const std::vector<double>& part : gather_evaluation(o.train.place, mine))
    for (std::size_t i = 0; i < part.size(); i += static_cast<std::size_t>(width) + 1) {
      const auto first = part.begin() + static_cast<std::ptrdiff_t>(i) + 1;
      by_item[static_cast<std::int64_t>(part[i])] = {first, first + width};
    }
  if (by_item.empty()) fail("eval: ", held_out.name(), " has no clip that can be read");
  score.clips = static_cast<std::int64_t>(by_item.size()), score.damaged = held_out.size() - score.clips;
  score.each.assign(static_cast<std::size_t>(held_out.size()), std::numeric_limits<double>::quiet_NaN());
  score.by_time.assign(score.times.size(), 0.0);
  const double count = static_cast<double>(score.clips);
  for (const auto& [item, row] : by_item) {
    double mean = 0;
    for (std::size_t k = 0; k < row.size(); ++k) {
      mean += row[k] / static_cast<double>(width);
      score.by_time[k] += row[k] / count;
    }
    score.each[static_cast<std::size_t>(item)] = mean;
    score.mse += mean / count;
  }
  double squares = 0;
  for (const auto& [item, row] : by_item) {
    const double away = score.each[static_cast<std::size_t>(item)] - score.mse;
    squares += away * away;
  }
  score.mse_se = score.clips > 1 ? std::sqrt(squares / (count - 1) / count) : 0.0;
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

}  // namespace mhla::train
