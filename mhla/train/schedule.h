// The learning rate of step t (from 0) of T, w of them warm-up:
//   t < w:            start + (peak - start) (t + 1) / w
//   constant, t >= w: peak
//   cosine, t >= w:   low + (peak - low) (1 + cos(pi (t - w) / (T - w))) / 2
#pragma once

#include <cstdint>

#include "mhla/train/options.h"

namespace mhla::train {

class Schedule {
 public:
  Schedule(const TrainOptions& options, std::int64_t total_steps);
  [[nodiscard]] double operator()(std::int64_t step) const;

 private:
  bool cosine_;
  double start_, peak_, low_;
  std::int64_t warmup_, total_;
};

}  // namespace mhla::train
