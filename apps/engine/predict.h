// `mhla predict` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// A row per image in the order they were given, of kind "image", or "failed" where it cannot be read. Throws
// mhla::Error after the last one if any failed.
void predict(const PredictRequest& request, train::Observer& observer);

}  // namespace mhla::apps
