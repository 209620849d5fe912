// VLT: four stages, each on a grid of half the side of the one before. The first two have the configured attention, the
// last two softmax attention; all of them inside a gate, with LePE and 2D RoPE. Tokens stay [B, N, C] inside a stage.
//   x = x + pos(x); x = x + gamma_1 attn(norm1(x)); x = x + gamma_2 ffn(norm2(x))
//   ffn(x) = fc2(y + dwconv(y)), y = gelu(fc1(x))
//   logits = head(mean(silu(norm(proj(x)))))
// Parameters have the published names and shapes but for those of the attention: 1x1 convolutions are [out, in, 1, 1].
#pragma once

#include <functional>

#include "mhla/models/classify/classifier.h"
#include "mhla/models/parts.h"
#include "mhla/modules/convolutions.h"

namespace mhla {

// A 1x1 convolution on tokens.
class PointConvImpl : public torch::nn::Module {
 public:
  PointConvImpl(std::int64_t in, std::int64_t out);
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight.flatten(1), bias); }

  torch::Tensor weight, bias;  // [out, in, 1, 1], [out]
};
TORCH_MODULE(PointConv);

class VltBlockImpl : public torch::nn::Module {
 public:
  VltBlockImpl(const ClassifierConfig& config, std::string_view attention, std::size_t stage, const Layout& layout,
               double drop_path);
  using Attend = std::function<torch::Tensor(Attention&, const torch::Tensor&)>;
  torch::Tensor forward(torch::Tensor x, const Attend& attend);
  [[nodiscard]] const AnyAttention& attention() const { return attn_; }

 private:
  double drop_path_, dropout_;
  GridConv pos_{nullptr}, dwconv_{nullptr};
  TokenNorm norm1_{nullptr}, norm2_{nullptr};
  AnyAttention attn_;
  PointConv fc1_{nullptr}, fc2_{nullptr};
  torch::Tensor gamma_1_, gamma_2_;  // [1, C, 1, 1]
};
TORCH_MODULE(VltBlock);

class VltImpl : public Classifier {
 public:
  explicit VltImpl(const ClassifierConfig& config);
  torch::Tensor forward(const torch::Tensor& images) override { return head_(features(images)); }
  torch::Tensor features(const torch::Tensor& images) override;
  torch::Tensor head(const torch::Tensor& features) override { return head_(features); }
  [[nodiscard]] std::vector<std::pair<std::string, Layout>> position_tables() const override;

 private:
  struct Stage {
    Layout layout;
    std::vector<VltBlock> blocks;
    torch::nn::Conv2d reduction{nullptr};  // to the next stage
    BatchNorm norm{nullptr};
  };
  std::vector<Stage> stages_;
  torch::nn::Sequential stem_{nullptr};
  PointConv proj_{nullptr}, head_{nullptr};
  BatchNorm norm_{nullptr};
};
TORCH_MODULE(Vlt);

}  // namespace mhla
