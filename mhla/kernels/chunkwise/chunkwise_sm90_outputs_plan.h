// The output of the causal form on Hopper for chunks of more than 64 tokens: which warps do what, how shared memory is
// laid out, and how tiles are shared out. Pure functions, tested without a GPU.
//
// A block of threads takes chunks, two tiles of 64 queries of one at a time, all columns of v:
//   2 warpgroups  outputs, one tile of queries each: q~ P_i + sum_j (m_ii (q~ k~_j^T) below the diagonal) v_j
//   4 warps       prepare what was copied: two map k, two look whether v is finite where a mask is
//   4 warps       copies: one asks for k, one for v, one for q and P
// Both tiles of queries read the same k, v and P. The tile above the diagonal, which the first one does not need, is
// passed over by it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mhla/kernels/common/cuda/sm80_plan.h"

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

inline constexpr int kOutputTokens = 64, kOutputGroups = 2, kOutputWarps = 4 * kOutputGroups, kPrepareWarps = 2;
inline constexpr int kOutputThreads = 128 * (kOutputGroups + 2);

// Tiles of 64 queries of a chunk go in pairs. Keys up to the later one's own are loaded for both.
constexpr int output_tiles(int tokens) { return (tokens + kOutputTokens - 1) / kOutputTokens; }
constexpr int output_pairs(int tiles) { return (tiles + 1) / 2; }
constexpr int output_loads(int pair, int tiles) { return std::min(2 * pair + 2, tiles); }
// The tile of a warpgroup. They change places with every pair, so that both have the same work in the end. `turn`
// counts pairs over everything that a block of threads does.
constexpr int output_tile(int pair, int group, int turn) { return 2 * pair + (group ^ (turn & 1)); }

// kPanels: of 64 features, and of 64 columns of each of kParts parts of v (column_parts()).
template <int kPanels_, int kParts_>
struct OutputTiles {
  static constexpr int kPanels = kPanels_, kParts = kParts_;
  static constexpr int kValuePanels = kPanels * kParts, kColumns = 64 * kValuePanels, kPartColumns = 64 * kPanels;
  static constexpr int kPanel = kOutputTokens * 128;  // 64 tokens, 64 values, swizzled over 128 bytes
  static constexpr int kKeyStages = 4, kValueStages = kParts == 2 ? 2 : 4;
  static constexpr int kTile = kPanels * kPanel;         // of q or k
  static constexpr int kValues = kValuePanels * kPanel;  // of v
  static constexpr int kPrefixPanel = kPanels * kPanel;  // 64 columns of P, all rows
  static constexpr int kPrefix = kValuePanels * kPrefixPanel;
  // Shared memory from byte 0 on, which lies at a multiple of 1024.
  static constexpr int kValuesAt = kKeyStages * kTile;                   // k before it
  static constexpr int kQueriesAt = kValuesAt + kValueStages * kValues;  // by warpgroup
  static constexpr int kPrefixAt = kQueriesAt + kOutputGroups * kTile;   // P
  static constexpr int kZAt = kPrefixAt + kPrefix;                       // p, in order
  static constexpr int kUnusualAt = kZAt + kPanels * 128;                // two words a stage of v
  static constexpr int kBarriersAt = kUnusualAt + kValueStages * 8;

  // Barriers of 8 bytes each, in the order in which they lie in memory.
  static constexpr int kKeyCopied = 0;                       // 1 arrival and the bytes
  static constexpr int kKeyReady = kKeyCopied + kKeyStages;  // k is mapped: two warps; not with identity
  static constexpr int kKeyFree = kKeyReady + kKeyStages;    // warps of the outputs
  static constexpr int kValueCopied = kKeyFree + kKeyStages;
  static constexpr int kValueChecked = kValueCopied + kValueStages;  // two warps
  static constexpr int kValueFree = kValueChecked + kValueStages;    // warps of the outputs, and two
  static constexpr int kQueryCopied = kValueFree + kValueStages;     // by warpgroup
  static constexpr int kQueryFree = kQueryCopied + kOutputGroups;    // four warps
  static constexpr int kPrefixCopied = kQueryFree + kOutputGroups;
  static constexpr int kPrefixFree = kPrefixCopied + 1;    // warps of the outputs
  static constexpr int kUnusualMeeting = kPrefixFree + 1;  // all threads of the outputs
  static constexpr int kBarriers = kUnusualMeeting + 1;
  static constexpr int kBytes = kBarriersAt + kBarriers * 8;

  // Blocks of threads on a multiprocessor, and registers of a thread: equally many at the start, then they move to
  // those that multiply. These hold sums of kColumns / 2, 32 of scores and 16 of their fragments.
  static constexpr int kBlocks = 1;
  static constexpr int kStartRegisters = 65536 / (kOutputThreads * kBlocks) / 8 * 8;
  static constexpr int kCopyRegisters = 40, kOutputRegisters = 216;
  static_assert(2 * kCopyRegisters + kOutputGroups * kOutputRegisters <= 4 * kStartRegisters);
  static_assert(kOutputRegisters >= kColumns / 2 + 32 + 16);
  static_assert(kValuesAt % 1024 == 0 && kQueriesAt % 1024 == 0 && kPrefixAt % 1024 == 0 && kBarriersAt % 16 == 0);
  static_assert(kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

}  // namespace mhla::sm90
