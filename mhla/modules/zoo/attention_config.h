// What a model says when it asks for an attention of the zoo.
#pragma once

#include <memory>

#include "mhla/modules/rope.h"

namespace mhla {

// What a model knows when it asks for an attention. Fields that an attention has no use for are ignored; what it cannot
// do it refuses.
struct AttentionConfig {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  Layout layout;                   // of an image or video: the token grid, and MHLA's blocks. Rank 0: a sequence
  bool causal = false;             // no token sees a later one
  std::int64_t chunk = 64;         // of the causal MHLA
  std::int64_t max_tokens = 2048;  // of a sequence
  bool rope = false;               // softmax: rotary positions. MHLA's and RALA's kind have theirs anyway
  std::shared_ptr<RopeCache> maybe_rope_cache;  // of the model; without one a layer keeps its own
  std::int64_t lepe = 0;  // softmax on a grid: kernel of a convolution on v that is added, 0 for none
};

}  // namespace mhla
