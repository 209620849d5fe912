// `mhla train video` and `mhla eval video`.
#pragma once

#include "apps/engine/video_requests.h"
#include "mhla/train/observer.h"
#include "mhla/train/video/video_options.h"

namespace mhla::apps {

void train_video(const TrainRequest<train::VideoOptions>& request, train::Observer& observer);
void eval_video(const EvalVideoRequest& request, train::Observer& observer);

}  // namespace mhla::apps
