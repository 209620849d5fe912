// The MHLA layer with every published option. Parts that are not asked for do not exist, and have no parameters:
//
//   y = norm(x)                                       inner_norm
//   q, k, v = qkv(y), each short_conv                 one product, its slices go to the operator uncopied
//   q, k = q_norm(q), k_norm(k)                       over the full width, before heads
//   q~, k~ = phi(q), phi(k); rotated in the numerator only
//   o = MHLA(q~, k~, v; mix)
//   o = head_norm(o), o * act(gate(y)), o + lepe(v)   lepe inside the gate with lepe_inside_gate
//   out(o), dropout
//
// Parameters have the names of the Python layer mhla.nn.MHLA; weight_names.h knows the published ones.
#pragma once

#include <optional>
#include <utility>

#include "mhla/kernels/mixing/mixing.h"
#include "mhla/kernels/streaming/streaming.h"
#include "mhla/modules/attention.h"
#include "mhla/modules/context_share.h"
#include "mhla/modules/convolutions.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/modules/norms.h"
#include "mhla/modules/param_roles.h"
#include "mhla/modules/rope.h"
#include "mhla/modules/scores.h"
#include "mhla/ops/ops.h"

namespace mhla {

enum class Gate : std::uint8_t { kNone, kSilu, kLinear };

struct MhlaAttentionOptions {
  std::int64_t dim = 0, heads = 0;
  std::int64_t kv_heads = 0;                 // 0: as heads
  std::int64_t head_dim = 0, value_dim = 0;  // D and E; 0: dim / heads
  Layout layout;                             // bidirectional: line(block_size), or a grid
  bool causal = false;                       // then chunk instead of a layout
  std::int64_t chunk = 64;
  std::int64_t max_tokens = 2048;  // 1D and causal: what mix has rows for
  BeyondMix beyond_mix = BeyondMix::kError;

  bool qkv_bias = false, out_bias = true, gate_bias = false;
  bool inner_norm = false;      // LayerNorm, eps 1e-5, as published
  std::int64_t short_conv = 0;  // taps of a causal convolution with SiLU on q, k and v
  bool qk_norm = false;
  std::optional<double> qk_norm_eps;  // none: the epsilon of the dtype, as published
  Features features = fused(FeatureMap::kReluEps);
  bool rope = false;
  double rope_base = 10000.0;
  std::shared_ptr<RopeCache> maybe_rope_cache;  // of the model; without one the layer keeps its own
  std::optional<Normalizer> normalizer;         // none: paper, causal none
  double eps = 1e-6;
  std::optional<double> scale;
  bool head_norm = false;  // RMSNorm over each head's output
  double norm_eps = 1e-6;
  Gate gate = Gate::kNone;
  std::int64_t lepe = 0;  // kernel of the convolution on v
  bool lepe_inside_gate = false;
  bool lepe_identity = false;  // starts as the identity (DiT)

  MixInit mix_init;  // bidirectional
  CausalInit causal_init = CausalInit::kPrefix;
  bool mix_per_head = false;
  bool learn_mix = true;
  std::optional<MixConstraint> constraint = MixConstraint{};  // none: mix is free
  bool official_causal_clamp = false;                         // clips mix to [1e-5, 1] before every forward
  double dropout = 0.0;                                       // behind out, in training

  // The published settings; `official` switches on every deviation of the family's code.
  static MhlaAttentionOptions image(std::int64_t dim, std::int64_t heads, const Layout& layout, bool official = false);
  static MhlaAttentionOptions dit(std::int64_t dim, std::int64_t heads, const Layout& layout, bool official = false);
  static MhlaAttentionOptions video(std::int64_t dim, std::int64_t heads, const Layout& layout, bool official = false);
  static MhlaAttentionOptions lm(std::int64_t dim, std::int64_t heads, bool official = false);
  // Plain linear attention as the published image baseline has it: one block, whatever the length.
  static MhlaAttentionOptions linear(std::int64_t dim, std::int64_t heads);
};

class MhlaAttentionImpl : public Attention, public ScoredAttention, public HasParamRoles, public SharesContext {
 public:
  explicit MhlaAttentionImpl(const MhlaAttentionOptions& options);
  using Attention::forward;
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) override;
  torch::Tensor matrix(const torch::Tensor& x) override;  // what the operator does to unit values
  void constrain() override;                              // on any device; NaN stays NaN
  void use_plain_code(bool plain);  // LibTorch operators instead of the kernels (plain_attention.h); not causal
  AttentionScores scores(const torch::Tensor& x) override;  // of the bidirectional form
  [[nodiscard]] std::map<std::string, ParamRole> param_roles() const override { return {{"mix", ParamRole::kMix}}; }
  // While the share is active, forward() has this process's tokens of sequences. Not with BeyondMix::kExtend.
  void share_context(const std::shared_ptr<ContextShare>& share) override;

  // What one sequence of a state needs, on the device of the layer.
  [[nodiscard]] StreamingState streaming_state(std::optional<std::int64_t> rollback = {}) const;
  [[nodiscard]] AttentionState begin(std::int64_t batch) const override;
  using Attention::stream;
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state, const torch::Tensor& positions) override;

  // stream() in parts, for who records the first and the last of them (models/lm/decoder.h). A step is open until the
  // operator has run, once, on its tensors.
  struct Projected {
    torch::Tensor y, q, k, v;  // what the gate sees; [B, N, H, D], [B, N, Hkv, D], [B, N, Hkv, E]
  };
  struct StreamStep {
    Projected p;
    ops::AttentionInputs inputs;
    torch::Tensor out;   // [B, T, H, E]
    torch::Tensor gate;  // [B, T, H E] where it was computed with q, k and v
  };
  void expect_room(const AttentionState& state, std::int64_t tokens) const;  // throws where mix has no rows for them
  [[nodiscard]] RopeTable stream_table(const torch::Tensor& positions, std::int64_t end) const;  // all below `end`
  StreamStep open_step(const torch::Tensor& x, const RopeTable& table,
                       AttentionState* maybe_state);  // short_conv: given
  static StreamingParams step_params(const StreamStep& step, std::span<StreamingState* const> states);
  static void run_step(const StreamStep& step, AttentionState& state);
  torch::Tensor close_step(const StreamStep& step) { return finish(step.p, step.out); }

  // One token of each of a few sequences on a GPU, bf16: the same with the norm before the layer and the sum after it
  // in the kernels of its products (ops::linear_rows). x [B, 1, dim] f32, not normed.
  [[nodiscard]] bool takes_few_rows(const torch::Tensor& x, const RmsNorm& norm) const;
  StreamStep open_few_rows(const torch::Tensor& x, const RmsNorm& norm, const RopeTable& table);
  torch::Tensor close_few_rows(const torch::Tensor& x, const StreamStep& step);  // x + what the layer gives

  // Causal: other chunks than it was made with, and what happens beyond the rows of mix; no weight changes. States that
  // were begun before stay as they are.
  void set_length(std::int64_t chunk, BeyondMix beyond_mix);

  [[nodiscard]] const MhlaAttentionOptions& options() const { return options_; }
  // Rows of qkv that belong to q, k and v.
  [[nodiscard]] std::vector<std::int64_t> widths() const;

  torch::Tensor mix;  // [M, M] or [H, M, M], f32 (f64 in a layer of f64)

 private:
  torch::Tensor input(const torch::Tensor& x);  // checked, and behind the inner norm
  Projected project(const torch::Tensor& x, const torch::Tensor& cu_seqlens, AttentionState* state = nullptr);
  [[nodiscard]] ops::RowsInputs few_rows_in(const torch::Tensor& x, const RmsNorm& norm) const;
  [[nodiscard]] ops::RowsInputs few_rows_out(const torch::Tensor& x, const torch::Tensor& attended) const;
  [[nodiscard]] Projected heads_of(const torch::Tensor& qkv) const;  // without norms and convolutions
  StreamStep step_of(const Projected& p, const RopeTable& table);
  // q, k, and with a normaliser q_den and k_den, ready for the operator; which map is still to be applied.
  // The table is empty without rotary positions.
  FeatureMap prepare(const Projected& p, const RopeTable& table, ops::AttentionInputs& inputs);
  RopeTable rope_table(const torch::Tensor& q, const torch::Tensor& cu_seqlens);
  [[nodiscard]] torch::Tensor attend(const ops::AttentionInputs& inputs, FeatureMap map) const;  // [B, N, H, E]
  [[nodiscard]] ops::BidirectionalOptions bidirectional_options(FeatureMap map) const;
  // Whether q, k and v go from their projection to the operator as they lie, and so do their gradients back.
  [[nodiscard]] bool learns_packed() const;
  torch::Tensor finish(const Projected& p, torch::Tensor out);
  torch::Tensor lepe_of(const torch::Tensor& v);
  void clamp_mix() const;
  [[nodiscard]] Normalizer normalizer() const;
  [[nodiscard]] bool maps_outside() const { return options_.rope || !is_fused(options_.features); }

  [[nodiscard]] bool shared() const { return share_ != nullptr && share_->active(); }

  MhlaAttentionOptions options_;
  std::shared_ptr<RopeCache> rope_;      // of sequences
  std::shared_ptr<ContextShare> share_;  // none: whole sequences
  GridRope grid_rope_;
  bool plain_ = false;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear qkv_{nullptr}, gate_{nullptr}, out_{nullptr};
  ShortConv q_conv_{nullptr}, k_conv_{nullptr}, v_conv_{nullptr};
  RmsNorm q_norm_{nullptr}, k_norm_{nullptr}, head_norm_{nullptr};
  HeadFeatures feature_map_q_{nullptr}, feature_map_k_{nullptr};
  GridConv lepe_{nullptr};
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(MhlaAttention);

}  // namespace mhla
