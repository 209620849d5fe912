// The best evaluation of a run: its weights are in best.safetensors, what they reached is in the metadata of the file.
#pragma once

#include <optional>

#include "mhla/train/runs/run.h"
#include "mhla/train/task.h"
#include "mhla/train/weights.h"

namespace mhla::train {

struct Best {
  std::string metric;
  double value = 0;
  std::int64_t step = 0;
  std::string weights;  // "model", or "ema" where the running average was better
};

// The better one of an evaluation of the weights and of their average; none where neither has the metric as a number.
std::optional<Best> best_of(const MainMetric& metric, std::int64_t step, const Metrics& now, const Metrics& average);
// Whether `found` takes the place of `kept`: it is better, or the same evaluation again, of a run that went back to an
// earlier checkpoint.
bool is_better(const MainMetric& metric, const Best& found, const Best& kept);

// What the file of its weights says.
Metadata metadata_of(const Best& best);
// None where there is no such file, or one of another metric.
std::optional<Best> read_best(const std::filesystem::path& file, const std::string& metric);

}  // namespace mhla::train
