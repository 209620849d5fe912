// `mhla predict` behind apps/engine/train_interface.h.
#pragma once

#include "mhla/train/trainer.h"

namespace mhla::apps {

// {"images": [PATH, ...], "top": K, "run": FOLDER, "weights", "batch", "device", "threads"}: a row per image in the
// order they were given, of kind "image", or "failed" where it cannot be read. Throws mhla::Error after the last
// one if any failed.
void predict(const JsonValue& request, train::Observer& observer);

}  // namespace mhla::apps
