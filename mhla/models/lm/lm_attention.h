// The attention of a language model's block, as its configuration says.
#pragma once

#include "mhla/models/lm/lm_config.h"
#include "mhla/modules/attention.h"
#include "mhla/modules/attention_size.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/rope.h"

namespace mhla {

// mhla and linear share everything but the mixing matrix: linear attention's is 1 everywhere and stays so, of one chunk
// that every other repeats, hence of any length. Others as the zoo has them, softmax with rotary positions.
AnyAttention make_lm_attention(const LmConfig& config, const std::shared_ptr<RopeCache>& rope);

// The layer of mhla and linear attention.
MhlaAttentionOptions mhla_options(const LmConfig& config, const std::shared_ptr<RopeCache>& rope = nullptr);

AttentionSize lm_attention_size(const LmConfig& config);  // of what make_lm_attention makes

// One table of rotations for all layers.
std::shared_ptr<RopeCache> make_rope_cache(const LmConfig& config);

}  // namespace mhla
