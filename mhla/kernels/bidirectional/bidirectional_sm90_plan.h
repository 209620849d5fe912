// Plans of the Hopper forward, as pure functions of the shape: which tile sizes, and whether a head's summaries stay in
// shared memory (one kernel) or pass through the second-level cache (three kernels).
#pragma once

#include <cstdint>
#include <string>

namespace mhla {
struct Problem;
}

namespace mhla::sm90 {

// Why the Hopper kernels do not take a problem in the memory of a Hopper card, or empty.
std::string fit_problem(const Problem& problem);

inline constexpr std::int64_t kMaxBlocks = 1024;  // a strip of all summaries is mixed in shared memory

// Tiles of a head: D rows in rows * 16, E columns in columns * 8.
struct Tiles {
  int rows = 0, columns = 0;
};
inline constexpr Tiles kTiles[] = {{2, 4}, {4, 8}, {5, 9}, {8, 16}};

constexpr Tiles tiles_of(std::int64_t D, std::int64_t E) {
  for (const Tiles& t : kTiles) {
    if (D <= t.columns * 8 && E <= t.columns * 8) return t;
  }
  return {};
}

// D and E that fill the tiles.
constexpr int exact_size(Tiles t) { return t.columns * 8; }

// Bytes from one row to the next in shared memory: an odd number of 16-byte units, so that the eight rows of an 8 x 8
// matrix lie in different banks.
constexpr int pitch_of(Tiles t) { return t.columns % 2 == 1 ? t.columns * 16 : t.columns * 16 + 16; }

// A summary in shared memory: D rows of S, then z, padded to 16. Read-out takes rows 8 c + r, 8 (c + 1) + r, ...
// together (Queries in bidirectional_sm90.cuh): 32 bytes between every eight rows put these into different banks too.
constexpr int summary_row(int d, int pitch) { return d * pitch + d / 8 * 32; }
constexpr int summary_bytes(int D, Tiles t) {
  const int bytes = summary_row(D, pitch_of(t)) + (D + 15) / 16 * 32;
  return bytes % 32 == 0 ? bytes + 16 : bytes;  // so do the rows of the next block
}

inline constexpr int kMaxSharedBytes = 227 * 1024;  // of a block of threads
inline constexpr int kAllSharedBytes = 228 * 1024;  // of a multiprocessor, 1 KiB of it lost to every block
inline constexpr int kStepTokens = 16;              // tokens of one pipeline stage of the fused kernel
inline constexpr int kPhaseTokens = 64;             // and of the three phases
constexpr int phase_stages(Tiles t) { return t.rows >= 8 ? 2 : 3; }  // two blocks of threads a multiprocessor

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

inline constexpr int kMaxFusedBlocks = 64;   // mixing keeps all rows of a column in registers
inline constexpr int kBlockTableBytes = 64;  // of one block

// As many blocks of threads on a multiprocessor as fit, then as many stages.
constexpr FusedPlan fused_plan(std::int64_t M, std::int64_t D, Tiles t) {
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
    if (p.shared_bytes > kMaxSharedBytes) continue;
    const int fit = kAllSharedBytes / (p.shared_bytes + 1024);
    if (fit > resident) resident = fit, best = p;
  }
  return best;
}

// Heads whose summaries pass through the second-level cache together, in rounds of equal size.
inline constexpr std::int64_t kCachedBytes = std::int64_t{44} << 20;
constexpr std::int64_t units_at_once(std::int64_t units, std::int64_t unit_bytes) {
  const std::int64_t most = kCachedBytes / unit_bytes > 1 ? kCachedBytes / unit_bytes : 1;
  const std::int64_t rounds = (units + most - 1) / most;
  return (units + rounds - 1) / rounds;
}

}  // namespace mhla::sm90
