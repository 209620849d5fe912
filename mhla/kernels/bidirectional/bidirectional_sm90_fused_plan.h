// Plans of the fused kernels of Hopper (bidirectional_sm90_fused.cuh and its backward twin): a head's summaries in
// shared memory, as fused_plan() has them, beside a ring of slots that the copy engine fills. It takes blocks of equal
// size whose tokens come in boxes of 16: `across` tokens of a row of the grid, `down` rows.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm80_plan.h"
#include "mhla/kernels/common/layout.h"

namespace mhla::sm90 {

inline constexpr int kBoxTokens = 16;

// The blocks of a grid as boxes; across is 0 where they do not fit.
struct BlockBoxes {
  std::int64_t width = 0;              // tokens of a row of the grid
  std::int64_t columns = 0, rows = 0;  // tokens of a block along and across the rows
  std::int64_t per_row = 0;            // blocks of a row of blocks
  int across = 0, down = 0;            // of a box
};
constexpr BlockBoxes block_boxes(const Layout& layout, std::int64_t N) {
  BlockBoxes b;
  if (layout.rank == 1) {
    if (layout.block_size < 1 || N % layout.block_size != 0) return b;
    b.width = N, b.columns = layout.block_size, b.rows = 1, b.per_row = N / layout.block_size;
  } else {
    if (layout.grid[0] != 1) return b;
    if (layout.grid[1] % layout.blocks[1] != 0 || layout.grid[2] % layout.blocks[2] != 0) return b;
    b.width = layout.grid[2], b.per_row = layout.blocks[2];
    b.columns = layout.grid[2] / layout.blocks[2], b.rows = layout.grid[1] / layout.blocks[1];
  }
  if (b.columns % kBoxTokens == 0) {
    b.across = kBoxTokens, b.down = 1;
  } else if (b.columns <= kBoxTokens && kBoxTokens % b.columns == 0 && b.rows % (kBoxTokens / b.columns) == 0) {
    b.across = static_cast<int>(b.columns), b.down = kBoxTokens / b.across;
  }
  return b;
}

// Of pairs of tokens on warpgroups (on_warpgroups()), those that go to the kernel to which tiles come as boxes
// (bidirectional_sm90_heads.cuh). It always multiplies 256 queries, four squares of 64: what needs fewer squares stays
// with the other kernel (bidirectional_sm90_short.cuh). Both give the same bits.
constexpr bool pairs_in_boxes(std::int64_t M, std::int64_t C, sm80::Tiles t, const BlockBoxes& boxes) {
  return sm80::on_warpgroups(M, C, t) && boxes.across != 0 && M * sm80::pair_tiles_per_block(C) > 12;
}

// Warps of the kernel. Groups of warps summarise a block each: a warp has 16 `per_warp` rows of S. A slot of the ring
// holds k and v of 16 tokens for one group, or q of 32 tokens for two warps, so a slot has the same readers through a
// phase where groups and pairs of warps divide the slots.
struct BoxWarps {
  int per_warp = 0, in_group = 0, groups = 0, slots = 0;
  int blocks = 0;  // of threads on a multiprocessor, as registers allow
  constexpr int warps() const { return in_group * groups; }
  constexpr int pairs() const { return warps() / 2; }
};
constexpr BoxWarps box_warps(sm80::Tiles t) {
  if (t.rows == 2) return {2, 1, 4, 8, 3};
  if (t.rows == 4) return {2, 2, 4, 12, 1};
  if (t.rows == 5) return {1, 5, 2, 10, 1};
  return {};
}

// Backward: as many warps as dS~ has tiles of 16 rows and half its columns, and slots for two tiles of queries.
inline constexpr int kBoxGradientTokens = 64;
constexpr BoxWarps box_gradient_warps(sm80::Tiles t) {
  if (t.rows == 2) return {2, 1, 4, 8, 3};
  if (t.rows == 4) return {2, 2, 4, 12, 1};
  if (t.rows == 5) return {1, 5, 2, 10, 1};
  return {};
}
inline constexpr int kMostGradientBlocks = 16;        // dmix is one tile
constexpr int box_scratch_bytes(const BoxWarps& w) {  // TileScratch, then a tile of dmix of every warp
  return w.warps() * 1024 > 1280 ? w.warps() * 1024 : 1280;
}

// A summary in shared memory: D rows of S, then z padded to 16 values; an odd number of 16-byte units, so that the rows
// of 16 blocks lie in different banks.
constexpr int box_summary_bytes(int D, sm80::Tiles t) {
  const int bytes = D * sm80::pitch_of(t) + (D + 15) / 16 * 32;
  return bytes % 32 == 0 ? bytes + 16 : bytes;
}

struct BoxPlan {
  bool fits = false;
  int block_bytes = 0;  // of one summary
  // Shared memory: the ring at 0, then
  int summaries_at = 0;
  int mix_at = 0;       // mix as fragments; backward: and its transpose
  int scratch_at = 0;   // backward: what a tile of queries shares, then tiles of dmix
  int places_at = 0;    // where the boxes lie
  int trash_at = 0;     // a row that nobody reads
  int barriers_at = 0;  // of the slots: full, empty, ready to leave; backward: S is in memory
  int shared_bytes = 0;
};
constexpr BoxPlan box_layout(std::int64_t M, std::int64_t N, std::int64_t D, sm80::Tiles t, const BlockBoxes& boxes,
                             const BoxWarps& w, int mixes, int scratch, int most) {
  BoxPlan p;
  const int padded = static_cast<int>((M < sm80::kMaxFusedBlocks + 1 ? M : sm80::kMaxFusedBlocks + 1) + 15) / 16 * 16;
  if (padded > sm80::kMaxFusedBlocks || N > sm80::kMostFusedTokens || N == 0 || boxes.across == 0 || w.slots == 0)
    return p;
  p.block_bytes = box_summary_bytes(static_cast<int>(D), t);
  p.summaries_at = w.slots * 2 * kBoxTokens * sm80::pitch_of(t);
  p.mix_at = p.summaries_at + padded * p.block_bytes;
  p.scratch_at = p.mix_at + mixes * padded * padded * 2;
  p.places_at = p.scratch_at + scratch;
  p.trash_at = p.places_at + static_cast<int>(sm80::kMostFusedTokens) / kBoxTokens * 4;
  p.barriers_at = p.trash_at + sm80::pitch_of(t);
  p.shared_bytes = p.barriers_at + 24 * w.slots + 8;
  p.fits = p.shared_bytes <= most;
  return p;
}
// `most`: shared memory that a block of threads may have.
constexpr BoxPlan box_plan(std::int64_t M, std::int64_t N, std::int64_t D, sm80::Tiles t, const BlockBoxes& boxes,
                           int most) {
  return box_layout(M, N, D, t, boxes, box_warps(t), 1, 0, most);
}
constexpr BoxPlan box_gradient_plan(std::int64_t M, std::int64_t N, std::int64_t C, std::int64_t D, sm80::Tiles t,
                                    const BlockBoxes& boxes, int most) {
  if (C % kBoxGradientTokens != 0 || M > kMostGradientBlocks) return {};
  const BoxWarps w = box_gradient_warps(t);
  return box_layout(M, N, D, t, boxes, w, 2, box_scratch_bytes(w), most);
}

}  // namespace mhla::sm90
