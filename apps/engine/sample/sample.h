// `mhla sample`: images from a diffusion or flow model, for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

void sample_images(const SampleImagesRequest& request, train::Observer& observer);

}  // namespace mhla::apps
