// The tasks of `mhla eval lm --task` behind apps/engine/train_interface.h.
#pragma once

#include "mhla/io/json.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// A row {"kind": "task", ...} for each task, in the order they are asked for; for those made here, for each length.
void eval_lm_tasks(const JsonValue& request, train::Observer& observer);

}  // namespace mhla::apps
