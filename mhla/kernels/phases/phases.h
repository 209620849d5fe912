// The phases of the operator apart, both forms, for processes that share one sequence (README.md). A process holds
// blocks [first_block, first_block + local_blocks) of M, its tokens in raster order (tokens_of_blocks):
//   summaries   S_b, z_b of the local blocks                      sent to all
//   output      out, from the summaries of all blocks
//   queries     dq, the local rows of dmix, and dP_i              sent to all
//   keys        dk, dv, from dP of all blocks
// out, dq, dk and dv have the bits of bidirectional_forward and chunkwise_forward (and backward) of the candidate of
// the same name over the whole sequence, where those go by summaries; so has the sum of dmix over the processes.
#pragma once

#include <cstdint>
#include <optional>

#include "mhla/core/view.h"
#include "mhla/kernels/common/layout.h"
#include "mhla/kernels/common/options.h"
#include "mhla/kernels/common/part.h"

namespace mhla {

struct PhaseParams {
  ConstView q;              // [B, n, H, D]    n: tokens of the local blocks
  ConstView k;              // [B, n, Hkv, D]
  ConstView v;              // [B, n, Hkv, E]
  ConstView maybe_q_den;    // [B, n, H, D]    both or none
  ConstView maybe_k_den;    // [B, n, Hkv, D]
  ConstView mix;            // [M, M] or [H, M, M], of the whole sequence
  bool causal = false;      // the form: chunkwise or bidirectional
  Layout layout;            // of the whole sequence; causal: Layout::line(chunk)
  std::int64_t tokens = 0;  // N of the whole sequence
  std::int64_t first_block = 0, local_blocks = 0;
  FeatureMap feature_map = FeatureMap::kReluEps;
  Normalizer normalizer = Normalizer::kPaper;  // kPaper or kNone: kOfficial reads queries of other blocks
  double eps = 1e-6;
  std::optional<double> scale = {};  // default: D^-1/2 for the causal form with kNone, else 1
};

// X numbers a row: S [D][E], then z [D] unless kNone. All rows are contiguous, f32 (f64 for f64).
struct PhaseGrads {
  ConstView dout;     // [B, n, H, E]
  View dq, dk, dv;    // like q, k, v; not given: not computed
  View dmix;          // like mix; rows of other processes are exactly 0
  View maybe_dq_den;  // like q_den
  View maybe_dk_den;
};

// X and Hp (H when each query head has its own mix, else Hkv); 0 where the shapes do not tell.
std::int64_t phase_summary_size(const PhaseParams& params);
std::int64_t phase_gradient_heads(const PhaseParams& params);

void phase_summaries(const PhaseParams& params, View summaries /* [local_blocks, B, Hkv, X] */,
                     const RunOptions& run = {});
void phase_output(const PhaseParams& params, ConstView summaries /* [M, B, Hkv, X] */, View out /* [B, n, H, E] */,
                  const RunOptions& run = {});
// Computes dq, dq_den and dmix of grads. terms: of the causal form with a normaliser, else not given; for keys.
void phase_queries(const PhaseParams& params, ConstView summaries /* [M, B, Hkv, X] */, const PhaseGrads& grads,
                   View dP /* [local_blocks, B, Hp, X] */, View maybe_terms /* [B, n, H, 2] */,
                   const RunOptions& run = {});
// Computes dk, dv and dk_den of grads.
void phase_keys(const PhaseParams& params, ConstView dP /* [M, B, Hp, X] */, ConstView maybe_terms,
                const PhaseGrads& grads, const RunOptions& run = {});

// Which blocks process `rank` of P holds by default: equal numbers of slices of the first axis where there are enough,
// so that its tokens are consecutive, else equal numbers of blocks. Throws where P is larger than the number of blocks.
struct BlockRange {
  std::int64_t first, blocks;
};
BlockRange blocks_of_rank(const Layout& layout, std::int64_t tokens, std::int64_t P, std::int64_t rank);

}  // namespace mhla
