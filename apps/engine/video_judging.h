// Samples of a video model, judged: attributes, Frechet distance, motion. Part of `mhla eval video`.
#pragma once

#include "apps/engine/video_requests.h"
#include "mhla/train/video/open_video.h"

namespace mhla::apps {

// Throws where the run cannot be judged: clips that are no moving garments, or too few of them.
void expect_judgeable(const train::VideoRun& run, const EvalVideoRequest& request);
// Trains the judge where its folder has none; samples; one JSON object.
JsonValue judged(train::VideoRun& run, const EvalVideoRequest& request, train::Observer& observer);

}  // namespace mhla::apps
