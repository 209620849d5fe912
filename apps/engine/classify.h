// `mhla train classify` and `mhla eval classify` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/classify/classify_options.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Both throw mhla::Error for the caller's mistakes and mhla::RunFailed for what fails on the way.
void train_classify(const TrainRequest<train::ClassifyOptions>& request, train::Observer& observer);
void eval_classify(const EvalClassifyRequest& request, train::Observer& observer);

}  // namespace mhla::apps
