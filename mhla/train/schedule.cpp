#include "mhla/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "mhla/core/error.h"

namespace mhla::train {

Schedule::Schedule(const TrainOptions& options, std::int64_t total_steps)
    : cosine_(options.schedule == "cosine"),
      start_(options.warmup_lr),
      peak_(options.lr),
      low_(options.min_lr),
      warmup_(warmup_of(options, total_steps)),
      total_(total_steps) {
  if (warmup_ > total_)
    fail("train: warmup_steps is ", warmup_, ", expected at most the ", total_, " steps of the run");
}

double Schedule::operator()(std::int64_t step) const {
  if (step < warmup_) return start_ + (peak_ - start_) * static_cast<double>(step + 1) / static_cast<double>(warmup_);
  if (!cosine_ || total_ == warmup_) return peak_;
  const double way = static_cast<double>(std::min(step, total_) - warmup_) / static_cast<double>(total_ - warmup_);
  return low_ + (peak_ - low_) * 0.5 * (1.0 + std::cos(std::numbers::pi * way));
}

}  // namespace mhla::train
