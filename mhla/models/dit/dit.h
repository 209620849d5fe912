// Diffusion transformers: a noisy sample, a time and a class in, noise (and variance) out.
//   c = t_embedder(t) + y_embedder(class)
//   x = patches(sample) + pos_embed
//   shift1, scale1, gate1, shift2, scale2, gate2 = adaLN_modulation(silu(c))
//   x = x + gate1 attn(norm1(x) (1 + scale1) + shift1);  x = x + gate2 mlp(norm2(x) (1 + scale2) + shift2)   per block
//   out = unpatch(linear(norm(x) (1 + scale) + shift))
// Norms have no weights. Tokens are in raster order, also for MHLA. DiG: SwiGLU instead of the MLP, a convolution
// at the end of every block, and GLA scans in four directions: tokens are reversed after every block and the grid is
// transposed after every second. Parameters have the names of the original DiT but for those of the attention.
#pragma once

#include "mhla/models/classify/classifier.h"
#include "mhla/models/denoiser.h"
#include "mhla/models/dit/dit_plan.h"
#include "mhla/models/parts.h"
#include "mhla/models/residual_stream.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/param_roles.h"

namespace mhla {

// [n, kTimeChannels]: cosines, then sines, of t times 10000^(-k / (half - shift)), k < half.
torch::Tensor time_features(const torch::Tensor& t, std::int64_t shift, std::int64_t channels = kTimeChannels);

// [rows * columns, dim] f32: sines and cosines of the column in the first half of the channels, of the row in the
// second. Place i of an axis of n tokens is i base / n / scale; base 0: i / scale.
torch::Tensor dit_positions(std::int64_t rows, std::int64_t columns, std::int64_t dim,
                            std::array<std::int64_t, 2> base = {0, 0}, double scale = 1.0);
torch::Tensor dit_positions(const DitConfig& config);

// linear_2(silu(linear_1(features of t))), called mlp.0 and mlp.2.
class TimeEmbedderImpl : public torch::nn::Module {
 public:
  explicit TimeEmbedderImpl(const DitConfig& config);
  torch::Tensor forward(const torch::Tensor& t);  // [B, dim]

 private:
  std::int64_t freq_shift_;
  torch::nn::Linear first_{nullptr}, second_{nullptr};
};
TORCH_MODULE(TimeEmbedder);

// A row per class, and one for none.
class LabelEmbedderImpl : public torch::nn::Module, public HasParamRoles {
 public:
  explicit LabelEmbedderImpl(const DitConfig& config);
  torch::Tensor forward(const torch::Tensor& labels);  // [B, dim]; on the CPU a class that does not exist is refused
  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override {
    return {{"embedding_table.weight", ParamRole::kTable}};
  }

 private:
  torch::Tensor table_;  // [classes + 1, dim]
};
TORCH_MODULE(LabelEmbedder);

class DitBlockImpl : public torch::nn::Module {
 public:
  // `layout`: of the tokens as this block sees them, which a scan may have transposed.
  DitBlockImpl(const DitConfig& config, const DitPlan& plan, const Layout& layout);
  ResidualStream forward(ResidualStream stream, const torch::Tensor& c /* [B, dim] */);
  // t + y where the block has embedders of its own.
  torch::Tensor embed(const torch::Tensor& t, const torch::Tensor& labels);
  [[nodiscard]] const AnyAttention& attention() const { return attn_; }
  void keep_attention_input(bool keep) { keep_ = keep; }
  [[nodiscard]] const torch::Tensor& attention_input() const { return kept_; }

 private:
  void init(bool small_attention);
  torch::Tensor mlp(const torch::Tensor& x);
  double norm2_eps_;
  bool keep_ = false;
  torch::Tensor kept_;
  TimeEmbedder t_embedder_{nullptr};
  LabelEmbedder y_embedder_{nullptr};
  Cpe cpe_{nullptr};
  AnyAttention attn_;
  torch::nn::Linear modulation_{nullptr}, fc1_{nullptr}, fc2_{nullptr};
  Swiglu swiglu_{nullptr};
  GridConv dw_conv_{nullptr};
  torch::Tensor order_, place_;  // official: raster to block order and back; else undefined
};
TORCH_MODULE(DitBlock);

class DitImpl : public torch::nn::Module, public Denoiser, public HasParamRoles, public SharesContext {
 public:
  explicit DitImpl(const DitConfig& config);  // random weights from LibTorch's generator: torch::manual_seed first
  // [B, channels, rows, columns], [B] of any dtype, [B] int64 to [B, out_channels, rows, columns]. Labels are taken as
  // they come, in training too: who trains replaces some by null_class().
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& labels);

  torch::Tensor denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) override;
  [[nodiscard]] Conditioning unconditional(const Conditioning& condition) const override;
  [[nodiscard]] bool can_be_recorded() const override;
  [[nodiscard]] std::int64_t null_class() const;  // refused where the model has none

  void constrain();  // after an optimiser step: what must hold for the weights (MHLA: the range of mix)
  // In training processes share every sample, each with rows of blocks of its tokens; each gets the whole result.
  void share_context(const std::shared_ptr<ContextShare>& share) override;
  [[nodiscard]] const DitConfig& config() const { return config_; }
  [[nodiscard]] const std::vector<AttentionLayer>& attention_layers() const { return layers_; }
  // The tokens that every attention layer sees, [B, N, dim] each.
  std::vector<torch::Tensor> attention_inputs(const torch::Tensor& x, const torch::Tensor& t,
                                              const torch::Tensor& labels);
  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override {
    return {{"pos_embed", ParamRole::kTable}};
  }

 private:
  torch::Tensor patches(const torch::Tensor& x);
  [[nodiscard]] torch::Tensor unpatched(const torch::Tensor& tokens) const;

  DitConfig config_;
  DitPlan plan_;
  std::shared_ptr<ContextShare> share_;  // none: whole samples
  std::vector<AttentionLayer> layers_;
  torch::Tensor pos_embed_;                  // [1, N, dim], fixed
  torch::Tensor patch_weight_, patch_bias_;  // [dim, channels, patch, patch], [dim]
  TimeEmbedder t_embedder_{nullptr};
  LabelEmbedder y_embedder_{nullptr};
  std::vector<DitBlock> blocks_;
  torch::nn::Linear final_modulation_{nullptr}, final_linear_{nullptr};
};
TORCH_MODULE(Dit);

// ---- Weights (dit_weights.cpp)

// The names of the original DiT, of MHLA's DiT and of DiG; or those of diffusers, which know softmax attention only.
enum class DitNames { kOriginal, kDiffusers };
Weights published_weights(const DitImpl& model, DitNames names = DitNames::kOriginal);
// What does not fit is refused with the list of what is missing and what is left over, and nothing changes.
void load_published(DitImpl& model, const Weights& published);
// Which names these are: refused where they are neither.
DitNames dit_names_of(const Weights& published);
// A configuration for weights with published names: sizes from their shapes, the rest from `start`. Files of diffusers
// get its freq_shift and norm2_eps, and embedders of their own in every block unless all are equal. `heads` is in no
// file and comes from `start`.
DitConfig dit_config_for(const Weights& published, DitConfig start);

// A model of the same weights for samples of another size or other blocks: positions by formula (a table that is not
// the formula's is interpolated), mixing matrices resampled, everything else copied. `config` differs from the model's
// in image, blocks, pos_base and pos_scale alone; at_size() makes one.
Dit resized(const DitImpl& model, const DitConfig& config);

// A model of softmax or linear attention with MHLA or linear attention instead: q, k, v, the output projection and
// whatever else both have stay, the rest keeps its initial value. From linear attention with mix_init uniform the
// function stays the same up to epsilon. `config` differs in the attention and its options alone.
Dit with_attention(const DitImpl& model, const DitConfig& config);

// model.safetensors and config.json in one folder.
void save_dit(const DitImpl& model, const std::filesystem::path& folder);
Dit load_dit(const std::filesystem::path& folder);

}  // namespace mhla
