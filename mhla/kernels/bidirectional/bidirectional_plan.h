// Which way the bidirectional forward goes, as a pure function of the shape of one sequence. The choice never looks at
// the batch or at the number of threads, so neither changes a bit.
#pragma once

#include <cstdint>

#include "mhla/kernels/common/options.h"

namespace mhla {

enum class BidirectionalWay : std::uint8_t {
  kQuadratic,  // out = ((q~ k~^T) * mix[b(t), b(s)]) v: no summaries at all
  kSummaries,  // block summaries, mixing, output
};

inline constexpr std::int64_t kMaxQuadraticTokens = 256;  // scores of a tile are packed rows, at most this long

constexpr std::int64_t quadratic_flops(std::int64_t N, std::int64_t D, std::int64_t E) { return 2 * N * N * (D + E); }

constexpr std::int64_t summary_flops(std::int64_t N, std::int64_t M, std::int64_t D, std::int64_t E) {
  return 4 * N * D * E + 2 * M * M * D * E;
}

// The quadratic way wins where blocks are small against the head size: its products are fewer there and longer.
// kOfficial needs z_b of every block and always goes by summaries.
constexpr BidirectionalWay bidirectional_way(std::int64_t N, std::int64_t M, std::int64_t D, std::int64_t E,
                                             Normalizer normalizer) {
  if (N > kMaxQuadraticTokens || normalizer == Normalizer::kOfficial) return BidirectionalWay::kSummaries;
  return quadratic_flops(N, D, E) < summary_flops(N, M, D, E) ? BidirectionalWay::kQuadratic
                                                              : BidirectionalWay::kSummaries;
}

}  // namespace mhla
