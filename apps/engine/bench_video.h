// Video transformers in `mhla bench model`.
#pragma once

#include "apps/engine/video_requests.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

// Times one model of one size: one row. Throws mhla::Error for the caller's mistakes.
void bench_video(const BenchVideoRequest& request, train::Observer& observer);

}  // namespace mhla::apps
