// Language models in `mhla bench model`.
#pragma once

#include "mhla/train/trainer.h"

namespace mhla::apps {

// Times one model, {"model", "attention", "length", "batch", "pass", "recompute", "device", "precision", "threads",
// "min_seconds"}: one row. Passes: fwd, train (a whole step), decode (one token of every sequence behind `length`
// tokens). Throws mhla::Error for the caller's mistakes.
void bench_lm(const JsonValue& request, train::Observer& observer);

}  // namespace mhla::apps
