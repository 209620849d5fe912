// From a model and images to the heads that analysis/ looks at, and to mixing matrices as they are and as they began.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "mhla/analysis/head_attention.h"
#include "mhla/models/classify/classifier.h"

namespace mhla {

struct LayerAttention {
  std::string name;  // "blocks.0.attn"
  Layout layout;     // token grid and blocks
  // [samples][heads]; empty where the attention has no matrix that can be written down (scans: gla, mamba, gdn)
  std::vector<std::vector<HeadAttention>> heads;
};

// Every attention layer of the model on `images` [B, channels, rows, columns], in evaluation mode and without
// gradients. Factors are what the network computes in its dtype, widened to f64.
std::vector<LayerAttention> attention_of(Classifier& model, const torch::Tensor& images);

struct MixState {
  std::string layer;
  std::optional<std::int64_t> head;  // where every head has its own
  Matrix initial, learned;           // [M, M]
};
// Of layers with more than one block. The initial state is that of a new model of the same configuration: no chance
// enters it.
std::vector<MixState> mix_states(const Classifier& model);

}  // namespace mhla
