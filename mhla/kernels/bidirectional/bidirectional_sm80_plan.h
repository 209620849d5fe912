// Plans of the bidirectional form of `sm80` and `sm90`. Short sequences go over all pairs of tokens; where a head's
// summaries fit shared memory one kernel does the forward pass; else summaries pass through memory between kernels
// (common/cuda/sm80_plan.h). `most`: shared memory that a block of threads may have.
#pragma once

#include <string>

#include "mhla/kernels/common/cuda/sm80_plan.h"

namespace mhla {
struct Problem;
}

namespace mhla::sm80 {

// Why the kernels do not take a problem in the memory of a card that can run them, or empty.
std::string fit_problem(const Problem& problem);

// Short sequences go over all pairs of tokens, in tiles of 16 tokens of one block: up to 256 tokens that costs less
// than moving summaries through shared memory.
inline constexpr int kMaxPairTiles = 16;
constexpr std::int64_t pair_tiles_per_block(std::int64_t C) { return (C + 15) / 16; }
inline constexpr int kPairTableBytes = 4224;  // tokens, mix and weights (bidirectional_sm80_pairs.cuh)
constexpr int pair_shared_bytes(std::int64_t tiles, Tiles t) {
  return static_cast<int>(2 * tiles * 16) * pitch_of(t) + kPairTableBytes;
}
constexpr bool over_pairs(std::int64_t M, std::int64_t C, Tiles t, int most) {
  const std::int64_t tiles = M <= kMaxPairTiles ? M * pair_tiles_per_block(C) : kMaxPairTiles + 1;
  return tiles <= kMaxPairTiles && pair_shared_bytes(tiles, t) <= most;
}

// On Hopper, of these, heads of 33 to 64 fill the panels of a warpgroup's products (bidirectional_sm90_short.cuh).
constexpr bool on_warpgroups(std::int64_t M, std::int64_t C, Tiles t) {
  return over_pairs(M, C, t, kMaxSharedBytes) && t.rows == 4;
}

inline constexpr int kStepTokens = 16;  // tokens of one pipeline stage

// Groups of warps that summarise different blocks at once. A group has one warp per 16 rows of S.
constexpr int groups_of(Tiles t) { return t.rows >= 8 ? 1 : t.rows == 5 ? 2 : 4; }

struct FusedPlan {
  int block_bytes = 0;  // of one summary
  int stage_bytes = 0;  // k and v of kStepTokens tokens
  int stages = 0;       // 0: does not fit
  // Shared memory: summaries at 0, then
  int mix_at = 0;    // mix as fragments
  int ring_at = 0;   // the stages of every group
  int table_at = 0;  // where the blocks lie
  int trash_at = 0;  // a row that nobody reads
  int shared_bytes = 0;
};

// One block of threads takes a head from beginning to end: with more tokens, few heads would leave most of a card idle.
inline constexpr std::int64_t kMostFusedTokens = 2048;
inline constexpr int kMaxFusedBlocks = 64;   // mixing keeps all rows of a column in registers
inline constexpr int kBlockTableBytes = 64;  // of one block

// As many blocks of threads on a multiprocessor as fit, then as many stages.
constexpr FusedPlan fused_plan(std::int64_t M, std::int64_t D, Tiles t, int most) {
  FusedPlan p, best;
  const int padded = static_cast<int>((M < kMaxFusedBlocks + 1 ? M : kMaxFusedBlocks + 1) + 15) / 16 * 16;
  if (padded > kMaxFusedBlocks) return best;
  p.block_bytes = summary_bytes(static_cast<int>(D), t);
  p.stage_bytes = kStepTokens * 2 * pitch_of(t);
  int resident = 0;
  for (p.stages = 4; p.stages >= 2; --p.stages) {
    p.mix_at = padded * p.block_bytes;
    p.ring_at = p.mix_at + padded * padded * 2;
    p.table_at = p.ring_at + p.stages * groups_of(t) * p.stage_bytes;
    p.trash_at = p.table_at + padded * kBlockTableBytes;
    p.shared_bytes = p.trash_at + pitch_of(t);
    if (p.shared_bytes > most) continue;
    const int fit = all_shared_bytes(most) / (p.shared_bytes + 1024);
    if (fit > resident) resident = fit, best = p;
  }
  return best;
}

}  // namespace mhla::sm80
