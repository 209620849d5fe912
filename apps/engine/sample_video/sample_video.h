// `mhla sample video`: from prompts to videos, for the table of apps/engine/engine.h.
#pragma once

#include "apps/engine/sample_video/video_request.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

void sample_video(const SampleVideoRequest& request, train::Observer& observer);

}  // namespace mhla::apps
