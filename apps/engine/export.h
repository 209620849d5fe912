// `mhla export` behind apps/engine/train_interface.h.
#pragma once

#include "mhla/train/trainer.h"

namespace mhla::apps {

// {"run": FOLDER, "out": FILE, "with_normalize": BOOL, "weights", "batch", "device", "threads"}: a row says what was
// written.
void export_model(const JsonValue& request, train::Observer& observer);

}  // namespace mhla::apps
