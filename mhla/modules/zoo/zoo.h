// The attentions that MHLA is compared with, each from its formula (../README.md) and in a file of its own. Parameters
// keep the names of the published modules where there are any. All are tokens in, tokens out; none but softmax and
// linear attention needs to know the grid unless it convolves over it.
#pragma once

#include <string_view>
#include <vector>

#include "mhla/modules/attention.h"
#include "mhla/modules/attention_size.h"
#include "mhla/modules/zoo/attention_config.h"

namespace mhla {

// `name` is one of attention_names(): the table in zoo.cpp.
AnyAttention make_attention(std::string_view name, const AttentionConfig& config);
AttentionSize attention_size(std::string_view name, const AttentionConfig& config);  // of what make_attention makes
std::vector<std::string_view> attention_names();
bool has_causal_form(std::string_view name);
bool scans(std::string_view name);    // goes through an image in raster order: causal there too
bool has_mlp(std::string_view name);  // false for Mamba's blocks, which stand alone

// How many blocks of `name`, which has no MLP, have as many parameters as `blocks` of softmax attention with an MLP of
// `mlp_width` channels (two matrices, norms not counted); throws when none comes within 3 %.
std::int64_t matched_depth(std::string_view name, const AttentionConfig& config, std::int64_t blocks,
                           std::int64_t mlp_width);
std::int64_t count_parameters(const torch::nn::Module& module);

}  // namespace mhla
