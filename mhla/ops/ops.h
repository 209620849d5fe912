// The operator on LibTorch tensors: forward and backward through the kernels, autograd, autocast, shapes under
// torch.compile. The same operators are registered with PyTorch as torch.ops.mhla.* (README.md); these functions call
// them the way PyTorch does, so that modes and transforms of the dispatcher see them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "mhla/core/thread_count.h"
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/linear/linear_rows.h"

namespace mhla::ops {

// Inputs of both forms. q, k, v and the features of the normaliser share one dtype; strides are free but for the last,
// so slices of a fused projection pass through without a copy. An undefined tensor is one that is not given.
struct AttentionInputs {
  at::Tensor q;           // [B, N, H, D]
  at::Tensor k;           // [B, N, Hkv, D]
  at::Tensor v;           // [B, N, Hkv, E]
  at::Tensor mix;         // [M, M] or [H, M, M]: f32 (f64 for f64), or a 16-bit float, which is widened
  at::Tensor q_den;       // [B, N, H, D]    features of the normaliser: both or none
  at::Tensor k_den;       // [B, N, Hkv, D]
  at::Tensor cu_seqlens;  // [S + 1] int32 or int64; one on a device costs a copy that waits for it
};

struct BidirectionalOptions {
  Layout layout;
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kPaper;
  double eps = 1e-6;
  double scale = 1.0;
};
at::Tensor bidirectional(const AttentionInputs& inputs, const BidirectionalOptions& options);  // [B, N, H, E]
// The same of a projection's q, k and v side by side, [B, N, H D + Hkv D + Hkv E], and v as a slice of it, for what
// else reads it. In training the three gradients are written in place of a copy that joins them.
struct PackedHeads {
  std::int64_t heads = 1, kv_heads = 1, head_dim = 0, value_dim = 0;
};
std::pair<at::Tensor, at::Tensor> bidirectional_packed(const at::Tensor& qkv, const at::Tensor& mix,
                                                       const PackedHeads& heads, const BidirectionalOptions& options);

struct ChunkwiseOptions {
  std::int64_t chunk = 64;
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kNone;
  double eps = 1e-6;
  std::optional<double> scale = {};  // default: D^-1/2 with kNone, 1 with kPaper
  BeyondMix beyond_mix = BeyondMix::kError;
};
at::Tensor chunkwise(const AttentionInputs& inputs, const ChunkwiseOptions& options);  // [B, N, H, E]

// RMSNorm of the last axis, or LayerNorm when centered, times silu(gate): mhla/kernels/norm.
struct NormOptions {
  at::Tensor bias, gate;  // [X], [..., X]
  double eps = 1e-6;
  bool centered = false;
  std::optional<at::ScalarType> dtype = {};  // of the result; default: that of x, under autocast its 16-bit one
};
at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options = {});
// x + add and RMSNorm of it, in one pass on a GPU. `dtype`: of the norm, as in NormOptions.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& add, const at::Tensor& weight,
                                           double eps = 1e-6, std::optional<at::ScalarType> dtype = {});
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);  // silu(gate) up: mhla/kernels/swiglu

// The loss of every token, [N] f32 (f64 for f64), from logits [N, V] and targets [N] i64; 0 where the target is
// `ignored`. With `gradient` the logits become softmax(logits) - onehot(target), 0 where ignored:
// mhla/kernels/cross_entropy.
at::Tensor cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, std::int64_t ignored, bool gradient);
// GELU, x times the normal distribution function of x, and its approximation with tanh: mhla/kernels/row_sum. Of
// x [..., C] = y + bias, bias [C] being part of x already, the bias gets its gradient in the same backward pass. Twice
// differentiable.
at::Tensor erf_gelu(const at::Tensor& x);
at::Tensor erf_gelu(const at::Tensor& x, const at::Tensor& bias);
at::Tensor tanh_gelu(const at::Tensor& x);
at::Tensor tanh_gelu(const at::Tensor& x, const at::Tensor& bias);
at::Tensor row_sum(
    const at::Tensor& x);  // [..., C] to [C] in f32 (f64 for f64), the gradient of a bias: mhla/kernels/row_sum

// s = x + gate branch and LayerNorm(s) (1 + scale) + shift, without learned weights:
// mhla/kernels/norm/modulated_norm.h.
struct ModulatedNormInputs {
  at::Tensor x;             // [B, N, X]
  at::Tensor branch, gate;  // [B, N, X] and [B, 1, X] or [B, X]: both or none
  at::Tensor scale, shift;  // [B, 1, X] or [B, X]; one dtype with the gate
};
// s and the norm. `dtype`: of the norm; default: that of x, under autocast its 16-bit one.
std::pair<at::Tensor, at::Tensor> modulated_norm(const ModulatedNormInputs& inputs, double eps = 1e-6,
                                                 std::optional<at::ScalarType> dtype = {});

// base silu(gate) + a depthwise convolution of v over a grid of two or three axes: mhla/kernels/grid_conv.
struct GridConvInputs {
  at::Tensor v;             // [B, N, C], tokens of the grid in raster order
  at::Tensor weight, bias;  // [C, 1, kernel, kernel(, kernel)] and [C]
  at::Tensor base, gate;    // [B, N, C]: none, the first or both
};
at::Tensor grid_conv(const GridConvInputs& inputs, const std::vector<std::int64_t>& grid);

// q [B, N, H, D] and k [B, N, Hkv, D] behind the feature map, rotated: mhla/kernels/rope. Twice differentiable.
struct RopeTable {
  at::Tensor cos, sin;  // [N, D / 2] or [B, N, D / 2], f32 (f64 for f64)
  bool halves = false;  // pair j is channels j and j + D / 2; else 2j and 2j + 1
};
std::pair<at::Tensor, at::Tensor> rope(const at::Tensor& q, const at::Tensor& k, const RopeTable& table,
                                       FeatureMap feature_map = FeatureMap::kIdentity);
// The same of RMSNorm(q) and RMSNorm(k), [B, N, H D] each, over all heads; on a GPU without gradients one pass each:
// mhla/kernels/norm/norm_rope.h. Under autocast the results have its 16-bit dtype. [B, N, H, D]
struct NormRopeInputs {
  at::Tensor q, k;                // [B, N, H D]
  at::Tensor q_weight, k_weight;  // [H D]
  std::int64_t heads = 1;
  double eps = 1e-6;
};
std::pair<at::Tensor, at::Tensor> norm_rope(const NormRopeInputs& inputs, const RopeTable& table,
                                            FeatureMap feature_map = FeatureMap::kIdentity);

// out = silu(RMSNorm(x) weight) of rows [..., X] in one pass, for inference on a GPU: mhla/kernels/norm/norm_rope.h.
// False: not done, the kernel does not take it. `out` and x are contiguous.
bool norm_silu_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weight, double eps);

// A linear layer of a few rows on a GPU with the norm before it and what follows: mhla/kernels/linear/linear_rows.h.
// For inference only. rows_fit: whether the kernel takes it; leading axes are rows.
struct RowsInputs {
  RowsBefore before = RowsBefore::kPlain;
  RowsAfter after = RowsAfter::kStore;
  at::Tensor x, weight, second, scale, gate, add;
  std::int64_t head = 0;
  double eps = 1e-6;
};
struct RowsOutputs {
  at::Tensor out, second;
};
bool rows_fit(const RowsInputs& inputs);
RowsOutputs linear_rows(const RowsInputs& inputs);

// Threads of the kernels, of ATen and of OpenBLAS, which are three pools: as many as usable_threads() gives for
// `threads`, 0 for OMP_NUM_THREADS where it is set and all cores otherwise. The kernels start with that number.
ThreadCount set_num_threads(std::int64_t threads);
std::int64_t num_threads();

}  // namespace mhla::ops
