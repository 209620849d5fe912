// The transformer of Wan2.1: latents [B, C, F, H, W], a time and a caption to a velocity.
//   m = table + projection(silu(time))           six rows in f32: shift, scale, gate of attention, then of the MLP
//   x += gate * self_attention(LN(x) (1 + scale) + shift)      3D rotary positions
//   x += cross_attention(LN'(x), caption)                      LN' has weights; no gate
//   x += gate * mlp(LN(x) (1 + scale) + shift)
// Any grid that the patch divides: nothing of it is in the weights but MHLA's mixing matrices, whose blocks are a
// number of frames, rows and columns. The residual stream is f32 whatever the weights are, as in the original code.
#pragma once

#include <map>

#include "mhla/models/denoiser.h"
#include "mhla/models/residual_stream.h"
#include "mhla/models/wan/wan_config.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/norms.h"
#include "mhla/modules/param_roles.h"
#include "mhla/modules/rope.h"
#include "mhla/modules/weight_names.h"

namespace mhla {

using VideoGrid = std::array<std::int64_t, 3>;  // frames, rows, columns of tokens

// Rotary positions by grid, shared by the layers of a model.
class VideoRopes {
 public:
  explicit VideoRopes(std::int64_t head_dim) : head_dim_(head_dim) {}
  const RopeTable& at(const VideoGrid& grid, const torch::Tensor& like);

 private:
  std::int64_t head_dim_;
  std::map<VideoGrid, GridRope> tables_;
};

class WanSelfAttentionImpl : public torch::nn::Module, public HasParamRoles, public SharesContext {
 public:
  WanSelfAttentionImpl(const WanConfig& config, std::int64_t layer, std::shared_ptr<VideoRopes> ropes);
  // One grid for all samples, or one of each with a mask of their tokens [B, 1, N, N] (softmax attention alone).
  torch::Tensor forward(const torch::Tensor& x, const std::vector<VideoGrid>& grids, const torch::Tensor& mask);
  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override;
  void constrain();
  void share_context(const std::shared_ptr<ContextShare>& share) override;  // MHLA

  torch::Tensor mix;  // [M, M]; undefined without MHLA

 private:
  torch::Tensor attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const VideoGrid& grid);
  [[nodiscard]] ops::NormRopeInputs queries(const torch::Tensor& q, const torch::Tensor& k) const;
  torch::Tensor softmax(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        const std::vector<VideoGrid>& grids, const torch::Tensor& mask);

  WanConfig config_;
  std::string attention_;
  std::shared_ptr<VideoRopes> ropes_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr}, g_{nullptr};
  RmsNorm norm_q_{nullptr}, norm_k_{nullptr}, g_norm_{nullptr};
  torch::Tensor lepe_weight_, lepe_bias_;  // [C, 1, k, k, k], [C]
  std::shared_ptr<ContextShare> share_;    // none: whole videos
};
TORCH_MODULE(WanSelfAttention);

class WanCrossAttentionImpl : public torch::nn::Module {
 public:
  explicit WanCrossAttentionImpl(const WanConfig& config);
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& text);

 private:
  std::int64_t heads_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  RmsNorm norm_q_{nullptr}, norm_k_{nullptr};
};
TORCH_MODULE(WanCrossAttention);

class WanBlockImpl : public torch::nn::Module {
 public:
  WanBlockImpl(const WanConfig& config, std::int64_t layer, std::shared_ptr<VideoRopes> ropes);
  ResidualStream forward(ResidualStream stream, const torch::Tensor& rows /* [B, 6, C] f32 */,
                         const torch::Tensor& text, const std::vector<VideoGrid>& grids, const torch::Tensor& mask);
  [[nodiscard]] const WanSelfAttention& attention() const { return self_attn_; }

 private:
  double eps_;
  WanSelfAttention self_attn_;
  WanCrossAttention cross_attn_;
  torch::nn::LayerNorm norm3_;
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr};
  torch::Tensor modulation_;  // [1, 6, C]
};
TORCH_MODULE(WanBlock);

class WanImpl : public torch::nn::Module, public Denoiser, public SharesContext {
 public:
  explicit WanImpl(const WanConfig& config);

  // x [B, channels, frames, rows, columns]; t [B] from 0 to 1000; text [B, T, text_dim], T up to text_tokens. A model
  // with a vocabulary has text [B, T] int64, numbers of words: 0 is padding, 1 the empty caption.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& text);
  // Videos of different grids side by side, [channels, frames, rows, columns] each: equal to one by one. MHLA and
  // linear attention go through them one by one.
  std::vector<torch::Tensor> forward(const std::vector<torch::Tensor>& videos, const torch::Tensor& t,
                                     const torch::Tensor& text);
  torch::Tensor denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) override;
  [[nodiscard]] bool can_be_recorded() const override { return true; }
  [[nodiscard]] Conditioning unconditional(const Conditioning& condition) const override;
  void constrain();

  // In training processes share every video, each with blocks of frames; each gets the whole result.
  void share_context(const std::shared_ptr<ContextShare>& share) override { share_ = share; }

  [[nodiscard]] const WanConfig& config() const { return config_; }
  [[nodiscard]] const std::vector<WanBlock>& blocks() const { return blocks_; }
  void set_recompute(bool on) { recompute_ = on; }  // blocks keep their inputs only (models/recompute.h)

 private:
  [[nodiscard]] VideoGrid grid_of(const torch::Tensor& video) const;
  torch::Tensor patches(const torch::Tensor& video);  // [B, N, C]
  [[nodiscard]] torch::Tensor unpatched(const torch::Tensor& tokens, const VideoGrid& grid) const;
  torch::Tensor through(const torch::Tensor& tokens, const std::vector<VideoGrid>& grids, const torch::Tensor& mask,
                        const torch::Tensor& t, const torch::Tensor& text);
  torch::Tensor embed_text(const torch::Tensor& text);

  WanConfig config_;
  torch::Tensor patch_weight_, patch_bias_;
  torch::nn::Linear text_in_{nullptr}, text_out_{nullptr}, time_in_{nullptr}, time_out_{nullptr}, time_rows_{nullptr};
  std::vector<WanBlock> blocks_;
  torch::nn::Linear head_{nullptr};
  torch::Tensor head_rows_;  // [1, 2, C]
  torch::Tensor words_;      // [vocab, text_dim]; undefined without a vocabulary
  bool recompute_ = false;
  std::shared_ptr<ContextShare> share_;  // none: whole videos
};
TORCH_MODULE(Wan);

// The blocks of MHLA on a grid: a small one may leave the last blocks of an axis empty, which do not exist then.
Layout wan_layout(const WanConfig& config, const VideoGrid& grid);

// [B, channels]: cosines of t times falling frequencies, then sines; angles in f64 or f32.
torch::Tensor wan_time_features(const torch::Tensor& t, std::int64_t channels, bool wide);

// The same model with another attention, or MHLA's blocks on another grid: `config` differs in nothing else. All that
// both have is copied, mixing matrices are resampled. What is new starts without an effect: a gate with 1, LePE with 0;
// new mixing matrices are those of mix_init.
Wan with_attention(const WanImpl& model, const WanConfig& config);

// ---- Weights (wan_weights.cpp)

enum class WanNames : std::uint8_t { kOriginal, kDiffusers };

Weights to_published(const WanConfig& config, const Weights& ours, WanNames names);  // weights, or their gradients
// In either naming, or ours. What does not fit is refused with the lists of what is missing and what is left over, and
// nothing changes.
void load_published(WanImpl& model, const Weights& published);

// A folder with config.json (ours, diffusers' or the original's) and weights in one file or shards, in either naming.
Wan load_wan(const std::filesystem::path& folder, torch::ScalarType dtype = torch::kFloat);
void save_wan(const WanImpl& model, const std::filesystem::path& folder, WanNames names = WanNames::kOriginal,
              double shard_bytes = 5e9);

}  // namespace mhla
