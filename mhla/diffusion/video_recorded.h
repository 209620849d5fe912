// A recorded case of diffusers' WanPipeline, from noise and text embeddings to a video, computed again.
#pragma once

#include "mhla/models/recorded.h"

namespace mhla {

RecordedFamilies video_recorded();

}  // namespace mhla
