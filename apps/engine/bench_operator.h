// `mhla bench scale --op` in one process of a team.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/observer.h"
#include "mhla/train/options.h"

namespace mhla::apps {

// Times the operator with every sequence over all processes of the team: one row, of rank 0.
void measure_operator(const BenchScaleRequest& request, const train::TrainOptions& options, train::Observer& observer);

}  // namespace mhla::apps
