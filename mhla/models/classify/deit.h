// DeiT without a class token: patches, a position table, blocks, the mean of the tokens, a linear head.
//   x = patches(pad(images)) + pos_embed
//   x = cpe(x); x = x + attn(norm1(x)); x = x + mlp(norm2(x))     per block; Mamba's have no MLP, and there are more
//   logits = head(fc_norm(mean(x)))                                no norm before the mean
// Parameters have the published names but for those of the attention.
#pragma once

#include <functional>

#include "mhla/models/classify/classifier.h"
#include "mhla/models/parts.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/param_roles.h"

namespace mhla {

class DeitBlockImpl : public torch::nn::Module {
 public:
  DeitBlockImpl(const ClassifierConfig& config, const Layout& layout, double drop_path);
  using Attend = std::function<torch::Tensor(Attention&, const torch::Tensor&)>;
  torch::Tensor forward(torch::Tensor x, const Attend& attend);
  [[nodiscard]] const AnyAttention& attention() const { return attn_; }

 private:
  double drop_path_, dropout_;
  Cpe cpe_{nullptr};
  TokenNorm norm1_{nullptr}, norm2_{nullptr};
  AnyAttention attn_;
  Mlp mlp_{nullptr};
};
TORCH_MODULE(DeitBlock);

class DeitImpl : public Classifier, public HasParamRoles {
 public:
  explicit DeitImpl(const ClassifierConfig& config);
  torch::Tensor forward(const torch::Tensor& images) override { return head_(features(images)); }
  torch::Tensor features(const torch::Tensor& images) override;
  torch::Tensor head(const torch::Tensor& features) override { return head_(features); }
  [[nodiscard]] std::vector<std::pair<std::string, Layout>> position_tables() const override;
  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override {
    return {{"pos_embed", ParamRole::kTable}};
  }

 private:
  Layout layout_;
  torch::Tensor pos_embed_;  // [1, N, C]
  torch::nn::Conv2d proj_{nullptr};
  std::vector<DeitBlock> blocks_;
  TokenNorm fc_norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Deit);

}  // namespace mhla
