// `mhla bench scale` in one process of a team.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

// Times whole training steps of a model with the processes that the environment names, or alone: one row, of rank 0.
// Throws mhla::Error for the caller's mistakes.
void bench_scale(const BenchScaleRequest& request, train::Observer& observer);

}  // namespace mhla::apps
