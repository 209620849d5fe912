// Classifiers in `mhla bench model`, and what they have in common with language models.
#pragma once

#include <functional>

#include "apps/engine/requests.h"
#include "apps/engine/timed.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Times one model: one row. Throws mhla::Error for the caller's mistakes and mhla::RunFailed when plain code and the
// kernels disagree.
void bench_classifier(const BenchClassifierRequest& request, train::Observer& observer);

train::TrainOptions options_of(const BenchModelRequest& bench);

// The time of a step and, where the request asks for it, where that time goes (step_profile.h).
struct Measured : Timed {
  JsonValue profile;  // null: not asked for

  void add_to(JsonValue& row) const;  // ms, spread, profile
};
Measured measure(const BenchModelRequest& bench, const torch::Device& device, const std::function<void()>& step);

}  // namespace mhla::apps
