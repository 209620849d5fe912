// The commands behind apps/engine/train_interface.h.
#pragma once

#include "mhla/train/trainer.h"

namespace mhla::apps {

// All throw mhla::Error for the caller's mistakes and mhla::RunFailed for what fails on the way.
void train_classify(const JsonValue& request, train::Observer& observer);
void eval_classify(const JsonValue& request, train::Observer& observer);
void analyze(const JsonValue& request, train::Observer& observer);

}  // namespace mhla::apps
