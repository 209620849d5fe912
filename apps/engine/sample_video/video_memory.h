// What is in memory when, before any of it is asked for: the text encoder, then the transformer, then the autoencoder.
// Where the limit is small, the encoder runs on the host, guidance takes two passes, frames are decoded in tiles, and
// the transformer leaves before the autoencoder comes.
#pragma once

#include "apps/engine/sample_video/video_plan.h"
#include "mhla/core/memory.h"

namespace mhla::apps {

struct VideoMemory {
  bool encoder_on_host = false;  // although the rest is on a GPU
  bool rows_together = true;     // guidance in one pass
  bool decoder_beside = true;    // the autoencoder and the transformer are there at once
  std::optional<WanVaeTiles> tiles;
  std::vector<std::string> lines;  // the plan, for people
};

// `encoded`: tokens of the longest text that the encoder must see, 0: it is not loaded. What cannot fit is refused with
// the nearest that does. `limit`: of --max-memory, or what is at hand.
VideoMemory plan_video_memory(const SampleVideoRequest& request, const VideoPlan& plan, torch::Device device,
                              std::int64_t encoded);

double parse_bytes(const std::string& text, const std::string& option);  // "8GiB", "500MB", "12e9"

}  // namespace mhla::apps
