// The attentions that MHLA is compared with, each from its formula (README.md). Parameters keep the names of the
// published modules where there are any. All are tokens in, tokens out; none but softmax and linear attention needs to
// know the grid unless it convolves over it.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "mhla/modules/attention.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/norms.h"
#include "mhla/modules/rope.h"
#include "mhla/modules/scores.h"
#include "mhla/modules/zoo/zoo_parts.h"

namespace mhla {

// What a model knows when it asks for an attention. Fields that an attention has no use for are ignored; what it cannot
// do it refuses.
struct AttentionConfig {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  Layout layout;                   // of an image or video: the token grid, and MHLA's blocks. Rank 0: a sequence
  bool causal = false;             // no token sees a later one
  std::int64_t chunk = 64;         // of the causal MHLA
  std::int64_t max_tokens = 2048;  // of a sequence
  bool rope = false;               // softmax: rotary positions. MHLA's and RALA's kind have theirs anyway
  std::shared_ptr<RopeCache> maybe_rope_cache;  // of the model; without one a layer keeps its own
  std::int64_t lepe = 0;  // softmax on a grid: kernel of a convolution on v that is added, 0 for none
};

// "mhla", "softmax", "linear", "gla", "mamba", "mamba2", "gdn", "focused", "inline", "mala", "rala". Those that scan
// (gla, mamba, mamba2, gdn) go through an image in raster order; focused, inline, mala and rala have no causal form and
// say so.
AnyAttention make_attention(std::string_view name, const AttentionConfig& config);
std::vector<std::string_view> attention_names();
bool has_causal_form(std::string_view name);
bool has_mlp(std::string_view name);  // false for Mamba's blocks, which stand alone

// How many blocks of `name`, which has no MLP, have as many parameters as `blocks` of softmax attention with an MLP of
// `mlp_width` channels (two matrices, norms not counted); throws when none comes within 3 %.
std::int64_t matched_depth(std::string_view name, const AttentionConfig& config, std::int64_t blocks,
                           std::int64_t mlp_width);
std::int64_t count_parameters(const torch::nn::Module& module);

// o_t = sum_s softmax_s(q_t . k_s / sqrt D) v_s.
class SoftmaxAttentionImpl : public Attention, public ScoredAttention {
 public:
  explicit SoftmaxAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  torch::Tensor matrix(const torch::Tensor& x) override;
  AttentionScores scores(const torch::Tensor& x) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;  // keys and values of all tokens
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

 private:
  // q, k, v [B, N, H, D]. Positions of a sequence are below `count`; undefined: 0 to N - 1.
  std::vector<torch::Tensor> project(const torch::Tensor& x, const torch::Tensor& positions, std::int64_t count);
  AttentionConfig config_;
  std::shared_ptr<RopeCache> rope_;
  GridRope grid_rope_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
  GridConv lepe_{nullptr};
};
TORCH_MODULE(SoftmaxAttention);

// Gated linear attention: decays per key channel from a projection of rank 16; o = RMSNorm_head(S^T q) * SiLU(g).
class GlaAttentionImpl : public Attention {
 public:
  explicit GlaAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t heads_, key_, value_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, g_{nullptr}, o_{nullptr};
  torch::nn::Sequential gk_{nullptr};
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(GlaAttention);

// Gated DeltaNet: short convolutions, normalised q and k, the delta rule with one decay per head.
class GdnAttentionImpl : public Attention {
 public:
  explicit GdnAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t heads_, key_, value_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, a_{nullptr}, b_{nullptr}, g_{nullptr}, o_{nullptr};
  ShortConv q_conv_{nullptr}, k_conv_{nullptr}, v_conv_{nullptr};
  torch::Tensor A_log_, dt_bias_;  // [H]
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(GdnAttention);

// Mamba: a selective scan over 16 states per channel, between a convolution and a gate. Expand 2.
class MambaAttentionImpl : public Attention {
 public:
  explicit MambaAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t inner_, rank_;
  torch::nn::Linear in_{nullptr}, x_{nullptr}, dt_{nullptr}, out_{nullptr};
  ShortConv conv_{nullptr};
  torch::Tensor A_log_, D_;  // [inner, 16], [inner]
};
TORCH_MODULE(MambaAttention);

// Mamba-2: one decay per head of 64 channels, 128 states, one group. Expand 2.
class Mamba2AttentionImpl : public Attention {
 public:
  explicit Mamba2AttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

 private:
  torch::Tensor run(const torch::Tensor& x, const Packed& packed, AttentionState* state);
  std::int64_t inner_, head_, heads_;
  torch::nn::Linear in_{nullptr}, out_{nullptr};
  ShortConv conv_{nullptr};
  torch::Tensor dt_bias_, A_log_, D_;  // [heads]
  RmsNorm norm_{nullptr};
};
TORCH_MODULE(Mamba2Attention);

// Focused linear attention: features x^3 with the norm of x, a position table on k, a 5x5 convolution on v shared by
// heads.
class FocusedAttentionImpl : public Attention, public ScoredAttention {
 public:
  explicit FocusedAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  AttentionScores scores(const torch::Tensor& x) override;

 private:
  AttentionConfig config_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
  torch::Tensor scale_, positional_encoding_;  // [1, 1, C], [1, N, C]
  GridConv dwc_{nullptr};
};
TORCH_MODULE(FocusedAttention);

// InLine: weights that sum to 1 by subtraction, and a 3x3 convolution on v with weights made from the mean token.
class InlineAttentionImpl : public Attention, public ScoredAttention {
 public:
  explicit InlineAttentionImpl(const AttentionConfig& config);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  AttentionScores scores(const torch::Tensor& x) override;
  // The attention alone: q, k, v [B, N, H, D].
  static torch::Tensor core(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v);

 private:
  AttentionConfig config_;
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr};
  torch::nn::Sequential residual_{nullptr};
};
TORCH_MODULE(InlineAttention);

// MALA and RALA share their host: q, k, v and a gate from one projection, (core + LePE 5x5 (v)) * gate, 2D RoPE. VLT
// has softmax attention in it, too, without features.
class GatedImageAttentionImpl : public Attention, public ScoredAttention {
 public:
  enum class Core { kMala, kRala, kSoftmax };
  GatedImageAttentionImpl(const AttentionConfig& config, Core core);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  AttentionScores scores(const torch::Tensor& x) override;
  // The attentions alone: features q, k [B, N, H, D] and values; an empty table rotates nothing.
  static torch::Tensor mala(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                            const RopeTable& table = {});
  static torch::Tensor rala(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                            const RopeTable& table = {});

 private:
  AttentionConfig config_;
  Core core_;
  torch::nn::Linear qkvo_{nullptr}, proj_{nullptr};
  GridConv lepe_{nullptr};
  GridRope rope_;
};
TORCH_MODULE(GatedImageAttention);

}  // namespace mhla
