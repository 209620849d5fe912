// `mhla eval images` for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

// A row of kind "metric" for every metric in the order they were asked for, and one of kind "stats" for a file that was
// written. Throws mhla::Error for the caller's mistakes.
void eval_images(const EvalImagesRequest& request, train::Observer& observer);

}  // namespace mhla::apps
