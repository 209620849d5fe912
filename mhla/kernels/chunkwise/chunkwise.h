// The causal form (README.md, eq. 1 to 3). Chunk i = t / C, q~ = phi(q), k~ = phi(k):
//   num_t = q~_t^T sum_{b<i} mix[i,b] S_b + mix[i,i] sum_{s<=t in chunk i} (q~_t . k~_s) v_s
//   out_t = scale * num_t                                    (kNone, the default)
//   out_t = scale * num_t / den_t,  den_t likewise with 1 instead of v, plus eps   (kPaper)
// Entries of mix above the diagonal are never read.
#pragma once

#include <cstdint>
#include <optional>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/support.h"

namespace mhla {

// What happens beyond the L chunks that mix has rows for.
enum class BeyondMix : std::uint8_t {
  kError,
  // Row i >= L uses mix[L-1, L-1-(i-b)] for i-b < L and mix[L-1, 0] beyond; chunks at distance >= L-1 share that
  // coefficient and are kept as one running sum, oldest first. dmix collects what the reused entries receive.
  kExtend,
};

struct ChunkwiseParams {
  ConstView q;                 // [B, N, H, D]    before the feature map; last stride 1, others free
  ConstView k;                 // [B, N, Hkv, D]  query head h reads kv head h / (H / Hkv)
  ConstView v;                 // [B, N, Hkv, E]
  ConstView maybe_q_den;       // [B, N, H, D]    features of the normaliser: both or none, not with kNone
  ConstView maybe_k_den;       // [B, N, Hkv, D]
  ConstView mix;               // [L, L] or [H, L, L], f32 (f64 for f64), L >= chunks of the longest sequence
  ConstView maybe_cu_seqlens;  // [S + 1] i32 or i64, host memory; B = 1; chunks restart at every sequence
  std::int64_t chunk = 64;     // C
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kNone;  // kNone or kPaper
  double eps = 1e-6;
  std::optional<double> scale = {};  // default: D^-1/2 with kNone, 1 with kPaper
  BeyondMix beyond_mix = BeyondMix::kError;
};

// Gradients are overwritten, not accumulated. An output that is not given is not computed.
struct ChunkwiseGrads {
  ConstView dout;     // [B, N, H, E]
  View dq, dk, dv;    // like q, k, v
  View dmix;          // like mix; exactly 0 above the diagonal and where mix is not used
  View maybe_dq_den;  // like q_den; given only with q_den
  View maybe_dk_den;
};

void chunkwise_forward(const ChunkwiseParams& params, View out /* [B, N, H, E] */, const RunOptions& run = {});
void chunkwise_backward(const ChunkwiseParams& params, const ChunkwiseGrads& grads, const RunOptions& run = {});

// Bytes of scratch memory that the same call with the same executor will use.
std::int64_t chunkwise_forward_workspace(const ChunkwiseParams& params, View out, const RunOptions& run = {});
std::int64_t chunkwise_backward_workspace(const ChunkwiseParams& params, const ChunkwiseGrads& grads,
                                          const RunOptions& run = {});

// Bytes that the same call keeps for chunkwise_backward() in RunOptions::kept: 0 where backward would gain nothing.
std::int64_t chunkwise_kept(const ChunkwiseParams& params, View out, const RunOptions& run = {});

// Who can run the same call, fastest first, each with its reason where it cannot.
std::vector<Support> chunkwise_forward_support(const ChunkwiseParams& params, View out);
std::vector<Support> chunkwise_backward_support(const ChunkwiseParams& params, const ChunkwiseGrads& grads);

}  // namespace mhla
