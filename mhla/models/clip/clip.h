// CLIP: an image tower and a text tower into one space, for the CLIP score of prompts and samples.
//   towers: pre-norm blocks x += attn(ln1(x)); x += fc2(act(fc1(ln2(x)))), softmax attention, causal in the text tower
//   image:  patches and a class token, a norm before the blocks, the class token's output through a norm and a
//   projection text:   the output at the end token, the largest id of a row, through a norm and a projection
// Parameters have the names of transformers' CLIPModel; OpenAI's names are read and written too. For inference only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mhla/io/json.h"
#include "mhla/models/parts.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

struct ClipTowerConfig {
  std::int64_t dim = 0, layers = 0, heads = 0, mlp = 0;
  bool quick_gelu = true;  // x sigmoid(1.702 x), else the exact GELU
  double eps = 1e-5;
};

struct ClipConfig {
  ClipTowerConfig image_tower, text_tower;
  std::int64_t image = 224, patch = 32;      // pixels of a side
  std::int64_t context = 77, vocab = 49408;  // of the text tower
  std::int64_t projection = 512;             // of the common space
  void check() const;
};

// Sizes follow from the weights (transformers' names). Heads have 64 channels and the activation is quick GELU, as in
// OpenAI's models, unless `maybe_config` (config.json of transformers) says otherwise.
ClipConfig clip_config_of(const Weights& weights, const JsonValue* maybe_config = nullptr);

// One norm, attention and MLP: "encoder.layers.0".
class ClipLayerImpl : public torch::nn::Module {
 public:
  explicit ClipLayerImpl(const ClipTowerConfig& config);
  torch::Tensor forward(torch::Tensor x /* [B, N, C] */, const torch::Tensor& maybe_mask /* [N, N], added */);

 private:
  ClipTowerConfig config_;
  TokenNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, out_{nullptr}, fc1_{nullptr}, fc2_{nullptr};
};
TORCH_MODULE(ClipLayer);

class ClipImpl : public torch::nn::Module {
 public:
  explicit ClipImpl(const ClipConfig& config);

  torch::Tensor embed_images(const torch::Tensor& pixels /* [B, 3, image, image], normalised */);  // [B, projection]
  torch::Tensor embed_texts(const torch::Tensor& ids /* i64 [B, N], N up to context */);           // [B, projection]
  [[nodiscard]] double logit_scale() const;  // exp of the learned one
  [[nodiscard]] const ClipConfig& config() const { return config_; }

 private:
  ClipConfig config_;
  torch::Tensor class_embedding_, logit_scale_;  // [C], [1]: published without axes
  torch::nn::Conv2d patches_{nullptr};
  torch::nn::Embedding image_positions_{nullptr}, tokens_{nullptr}, text_positions_{nullptr};
  TokenNorm pre_norm_{nullptr}, post_norm_{nullptr}, final_norm_{nullptr};
  std::vector<ClipLayer> image_layers_, text_layers_;
  torch::nn::Linear image_projection_{nullptr}, text_projection_{nullptr};
};
TORCH_MODULE(Clip);

// u8 [B, 3, image, image] as CLIP's towers expect them: x / 255, less the mean, over the deviation of CLIP's images.
torch::Tensor clip_pixels(const torch::Tensor& images);

// 100 max(cos(image, text), 0) of every pair, [B]: the mean over a set is the CLIP score.
torch::Tensor clip_scores(const torch::Tensor& images, const torch::Tensor& texts);

// ---- Weights. transformers' names and OpenAI's, told apart by their keys.
Weights clip_from_openai(const Weights& openai);
Weights clip_to_openai(const Weights& ours);
Clip make_clip(const Weights& weights, const JsonValue* maybe_config = nullptr);  // any of the two sets of names
// A safetensors file, or a folder with model.safetensors and, if it is there, config.json.
Clip load_clip(const std::filesystem::path& path);

}  // namespace mhla
