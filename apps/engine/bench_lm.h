// Language models in `mhla bench model`.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Times one model: one row. Passes: fwd, train (a whole step), decode (one token of every sequence after `length`
// tokens). Throws mhla::Error for the caller's mistakes.
void bench_lm(const BenchLmRequest& request, train::Observer& observer);

}  // namespace mhla::apps
