// Weights of an attention layer by their published names, in and out. One table says what each of our parameters is
// called by a family; several names lie one after the other along axis 0 of ours. A family is recognised by its keys
// alone: a file that fits none or several, or leaves something over, is refused with the list of what is missing and
// what is left.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/modules/mhla_attention.h"

namespace mhla {

using Weights = std::map<std::string, torch::Tensor>;

// "image" (DiT too: the same names), "linear", "video", "lm", "lm_gated", the same of language models without mix
// ("lm_linear", "lm_linear_gated") and with softmax attention ("lm_softmax"), and of the softmax models that others
// start from "dit_base" and "wan_base".
std::vector<std::string_view> weight_families();
std::string_view weight_family_of(const Weights& published);

// Of those weights whose names start with `prefix` ("blocks.0.attn."); without a family it is recognised.
Weights from_published(const Weights& published, std::string_view family = {}, std::string_view prefix = {});
// `widths`: rows of qkv that belong to q, k and v. Undefined tensors (a gradient that is not there) are left out.
Weights to_published(const Weights& ours, std::string_view family, const std::vector<std::int64_t>& widths);

// Options that follow from which of our weights are there: biases, norms, gate, LePE and its kernel, short
// convolutions, feature maps that learn.
void adapt_options(MhlaAttentionOptions& options, const Weights& ours);

Weights weights_of(const torch::nn::Module& module);    // parameters by name
Weights gradients_of(const torch::nn::Module& module);  // undefined where there is none
// An error of `entry` that lists some of what `weights` lack of `own`, have beyond it, or have in another shape.
void expect_weights(const Weights& own, const Weights& weights, const char* entry);
// Every tensor of `own` gets its value, or nothing changes and expect_weights() says why.
void copy_weights(const Weights& own, const Weights& weights, const char* entry);
// The same for all parameters.
void load_weights(torch::nn::Module& module, const Weights& weights);

}  // namespace mhla
