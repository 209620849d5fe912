// How large the attentions of the zoo are, formula by formula beside what their constructors register. zoo_size_test
// holds them to the modules.
#pragma once

#include "mhla/modules/zoo/zoo.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

AttentionSize softmax_size(const AttentionConfig& config);
AttentionSize gla_size(const AttentionConfig& config);
AttentionSize gdn_size(const AttentionConfig& config);
AttentionSize mamba_size(const AttentionConfig& config);
AttentionSize mamba2_size(const AttentionConfig& config);
AttentionSize focused_size(const AttentionConfig& config);
AttentionSize inline_size(const AttentionConfig& config);
AttentionSize gated_size(const AttentionConfig& config);  // mala, rala, and the softmax attention of VLT

}  // namespace mhla
