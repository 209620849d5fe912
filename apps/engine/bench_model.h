// Classifiers in `mhla bench model`, and what they have in common with language models.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Times one model: one row. Throws mhla::Error for the caller's mistakes and mhla::RunFailed when plain code and the
// kernels disagree.
void bench_classifier(const BenchClassifierRequest& request, train::Observer& observer);

train::TrainOptions options_of(const BenchModelRequest& bench);

}  // namespace mhla::apps
