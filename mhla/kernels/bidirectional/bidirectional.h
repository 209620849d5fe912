// The bidirectional form (README.md, eq. 1 to 4), with q~ = phi(q), k~ = phi(k), i = block of t:
//   out_t = scale * q~_t^T S~_i / (eps + q~_t . z~_i),   S~_i = sum_b mix[i,b] S_b,   S_b = sum_{s in b} k~_s v_s^T
// Tokens stay in raster order; the kernel gathers blocks. Backward needs nothing of forward; what it can use is
// kept where it is asked for (RunOptions::kept).
#pragma once

#include <cstdint>

#include "mhla/core/view.h"
#include "mhla/kernels/common/layout.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/support.h"

namespace mhla {

struct BidirectionalParams {
  ConstView q;                 // [B, N, H, D]    before the feature map; last stride 1, others free (0 too)
  ConstView k;                 // [B, N, Hkv, D]  query head h reads kv head h / (H / Hkv)
  ConstView v;                 // [B, N, Hkv, E]
  ConstView maybe_q_den;       // [B, N, H, D]    features of the normaliser: both or none, not with kNone
  ConstView maybe_k_den;       // [B, N, Hkv, D]
  ConstView mix;               // [M, M] or [H, M, M], f32 (f64 for f64). 1D: may be larger, the leading part is used
  ConstView maybe_cu_seqlens;  // [S + 1] i32 or i64, host memory; B = 1, 1D layout; blocks restart at every sequence
  Layout layout;
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kPaper;
  double eps = 1e-6;   // added to the denominator
  double scale = 1.0;  // touches the numerator only
};

// Gradients are overwritten, not accumulated. An output that is not given is not computed.
struct BidirectionalGrads {
  ConstView dout;     // [B, N, H, E]
  View dq, dk, dv;    // like q, k, v
  View dmix;          // like mix; exactly 0 where mix is not used
  View maybe_dq_den;  // like q_den; given only with q_den
  View maybe_dk_den;
};

void bidirectional_forward(const BidirectionalParams& params, View out /* [B, N, H, E] */, const RunOptions& run = {});
void bidirectional_backward(const BidirectionalParams& params, const BidirectionalGrads& grads,
                            const RunOptions& run = {});

// Bytes of scratch memory that the same call with the same executor will use.
std::int64_t bidirectional_forward_workspace(const BidirectionalParams& params, View out, const RunOptions& run = {});
std::int64_t bidirectional_backward_workspace(const BidirectionalParams& params, const BidirectionalGrads& grads,
                                              const RunOptions& run = {});

// Bytes that the same call keeps for bidirectional_backward() in RunOptions::kept: 0 where backward would gain nothing.
std::int64_t bidirectional_kept(const BidirectionalParams& params, View out, const RunOptions& run = {});

// Who can run the same call, fastest first, each with its reason where it cannot.
std::vector<Support> bidirectional_forward_support(const BidirectionalParams& params, View out);
std::vector<Support> bidirectional_backward_support(const BidirectionalParams& params, const BidirectionalGrads& grads);

}  // namespace mhla
