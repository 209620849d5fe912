// `mhla train lm` and `mhla eval lm` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/lm/lm_options.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Both throw mhla::Error for the caller's mistakes and mhla::RunFailed for what fails on the way.
void train_lm(const TrainRequest<train::LmOptions>& request, train::Observer& observer);
void eval_lm(const EvalLmRequest& request, train::Observer& observer);

}  // namespace mhla::apps
