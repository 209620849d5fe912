// The command behind `mhla bench model`.
#pragma once

#include "mhla/train/trainer.h"

namespace mhla::apps {

// Times one model, {"model", "attention", "image", "blocks", "batch", "pass", "device", "precision", "threads",
// "min_seconds"}: one row. Throws mhla::Error for the caller's mistakes and mhla::RunFailed when plain code and the
// kernels disagree.
void bench_model(const JsonValue& request, train::Observer& observer);

}  // namespace mhla::apps
