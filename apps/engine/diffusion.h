// `mhla train diffusion` and `mhla eval diffusion` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/diffusion/diffusion_options.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Both throw mhla::Error for the caller's mistakes and mhla::RunFailed for what fails on the way.
void train_diffusion(const TrainRequest<train::DiffusionOptions>& request, train::Observer& observer);
void eval_diffusion(const EvalDiffusionRequest& request, train::Observer& observer);

}  // namespace mhla::apps
