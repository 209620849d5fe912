// The tasks of `mhla eval lm --task` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// A row {"kind": "task", ...} for each task, in the order they are asked for; for those made here, for each length.
void eval_lm_tasks(const EvalLmRequest& request, train::Observer& observer);

}  // namespace mhla::apps
