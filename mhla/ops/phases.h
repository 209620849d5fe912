// The phases of the operator on LibTorch tensors (mhla/kernels/phases): what processes that share a sequence call
// between their exchanges. No autograd here: who exchanges also differentiates (context_parallel.h, mhla.distributed in
// Python).
#pragma once

#include <array>
#include <optional>

#include "mhla/ops/ops.h"

namespace mhla::ops {

struct PhaseOptions {
  bool causal = false;
  Layout layout;            // of the whole sequence; causal: Layout::line(chunk)
  std::int64_t tokens = 0;  // of the whole sequence
  std::int64_t first_block = 0, local_blocks = 0;
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kPaper;
  double eps = 1e-6;
  std::optional<double> scale = {};  // default: D^-1/2 for the causal form with kNone, else 1
};

// Inputs hold the tokens of the local blocks; mix is f32 (f64 for f64) and whole. cu_seqlens is not taken.
at::Tensor phase_summaries(const AttentionInputs& in, const PhaseOptions& options);  // [local_blocks, B, Hkv, X]
at::Tensor phase_output(const at::Tensor& summaries, const AttentionInputs& in, const PhaseOptions& options);

struct PhaseQueryGrads {
  at::Tensor dP;                // [local_blocks, B, Hp, X]
  at::Tensor terms;             // [B, n, H, 2] of the causal form with a normaliser, else [0]
  at::Tensor dq, dmix, dq_den;  // undefined where not wanted
};
PhaseQueryGrads phase_queries(const at::Tensor& dout, const at::Tensor& summaries, const AttentionInputs& in,
                              const PhaseOptions& options, std::array<bool, 3> wanted /* dq, dmix, dq_den */);

struct PhaseKeyGrads {
  at::Tensor dk, dv, dk_den;  // undefined where not wanted
};
PhaseKeyGrads phase_keys(const at::Tensor& dout, const at::Tensor& dP, const at::Tensor& terms,
                         const AttentionInputs& in, const PhaseOptions& options,
                         std::array<bool, 3> wanted /* dk, dv, dk_den */);

}  // namespace mhla::ops
