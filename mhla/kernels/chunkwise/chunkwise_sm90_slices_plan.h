// The causal form of short chunks on Hopper, one kernel in which summaries never leave the chip: what it takes, how its
// shared memory is laid out and how its roles count tiles. Pure functions, tested without a GPU.
//
// A block of threads takes a slice of 32 columns of v of one head, and walks over the chunks of its sequence:
//   8 warps   summaries S_i = k~_i^T v_i, and of them the prefixes P_i (chunkwise_sm90_slice_summaries.cuh)
//   8 warps   outputs q~ P_i + m_ii (q~ k~^T below the diagonal) v, two warpgroups in turn
//   4 warps   copies of k and v, copies of q, and two that prepare what was copied
// Tiles are numbered over everything that a block of threads does: tile n is chunk i of some item.
#pragma once

#include <cstdint>

#include "mhla/kernels/common/cuda/sm80_plan.h"

namespace mhla {
struct Problem;
}

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

inline constexpr int kSliceFeatures = 128, kSliceColumns = 32, kSliceChunk = 64;  // D, columns of a slice, C
// Row i of mixing is either a sum over S_0 to S_i-1 that is still to be made, or the part of one that is known: of 32
// rows at most 16 are kept, 8 in registers and 8 in shared memory.
inline constexpr int kSliceMixRows = 32, kSliceGroup = 8;

// D and E: padded. Looks at no length: `rows` are those of mix.
constexpr bool takes_slices(std::int64_t D, std::int64_t E, std::int64_t chunk, std::int64_t rows, bool extend,
                            bool normalized) {
  return D == kSliceFeatures && E > 0 && E % kSliceColumns == 0 && chunk == kSliceChunk && rows <= kSliceMixRows &&
         !extend && !normalized;
}
// Whether a problem of candidate `sm90` goes over slices. In chunkwise_sm90_fit.cpp.
bool over_slices(const Problem& problem);

// Warps of a block of threads, roles in multiples of four.
inline constexpr int kSliceSummaryWarps = 8, kSliceOutputWarps = 8, kSliceCopyWarps = 4, kSliceOutputGroups = 2;
inline constexpr int kSliceThreads = 32 * (kSliceSummaryWarps + kSliceOutputWarps + kSliceCopyWarps);
// Registers of a thread: 96 each at the start, which then move to those that multiply.
inline constexpr int kSliceSummaryRegisters = 120, kSliceOutputRegisters = 104, kSliceCopyRegisters = 32;
static_assert(32 * (kSliceSummaryWarps * kSliceSummaryRegisters + kSliceOutputWarps * kSliceOutputRegisters +
                    kSliceCopyWarps * kSliceCopyRegisters) <=
              kSliceThreads * 96);
static_assert(kSliceThreads * 96 <= 65536);

// Stages of k and v, and how tiles share them. A barrier tells a phase by its parity only, so who waits for it must
// have seen every phase before, or a phase may be taken for the one two before. Output warpgroups take tiles in turn
// and three stages do not divide by two: so there are six barriers for three stages, and each belongs to one warpgroup.
inline constexpr int kSliceStages = 3, kSliceTurns = kSliceStages * kSliceOutputGroups;
struct SliceTurn {
  int slot = 0, parity = 0;  // n % 6, n / 6 % 2
  constexpr void advance(int tiles) {
    slot += tiles;
    if (slot >= kSliceTurns) slot -= kSliceTurns, parity ^= 1;
  }
  [[nodiscard]] constexpr int stage() const { return slot >= kSliceStages ? slot - kSliceStages : slot; }  // n % 3
};
constexpr SliceTurn slice_turn(unsigned tile) {
  return {static_cast<int>(tile % kSliceTurns), static_cast<int>(tile / kSliceTurns % 2)};
}

// Barriers of 8 bytes each, in the order in which they lie in memory.
struct SliceBarriers {
  static constexpr int kCopied = 0;                      // [6] k and v have arrived: 1 arrival and their bytes
  static constexpr int kReady = kCopied + kSliceTurns;   // [6] k is mapped, v inspected: 2 warps
  static constexpr int kFree = kReady + kSliceTurns;     // [3] all who read a stage are done: 8 + 4 warps
  static constexpr int kQueries = kFree + kSliceStages;  // [2] q has arrived
  static constexpr int kQueriesFree = kQueries + kSliceOutputGroups;  // [2] 4 warps
  static constexpr int kPrefix = kQueriesFree + kSliceOutputGroups;   // [2] P_i is written: 8 warps
  static constexpr int kPrefixFree = kPrefix + kSliceOutputGroups;    // [2] 4 warps
  static constexpr int kMix = kPrefixFree + kSliceOutputGroups;       // [2] mix of an item: 1 warp
  static constexpr int kMixFree = kMix + 2;                           // [2] 16 warps
  static constexpr int kCount = kMixFree + 2;
};

// Shared memory from byte 0 on, which lies at a multiple of 1024.
struct SliceMemory {
  static constexpr int kPanel = 64 * 128;                          // 64 tokens, 64 features, swizzled over 128 bytes
  static constexpr int kValues = kSliceChunk * kSliceColumns * 2;  // 64 tokens, 32 columns, swizzled over 64 bytes
  static constexpr int kStage = 2 * kPanel + kValues;              // k, v
  static constexpr int kPrefix = kSliceFeatures * kSliceColumns * 2;
  static constexpr int kQueriesAt = kSliceStages * kStage;                        // [2] q, by output warpgroup
  static constexpr int kPrefixAt = kQueriesAt + kSliceOutputGroups * 2 * kPanel;  // [2] P
  static constexpr int kOutputsAt = kPrefixAt + kSliceOutputGroups * kPrefix;     // [2] 64 rows on their way out
  // Rows of mixing that a warp keeps: eight of 16 x 32 values. Rows of 16-byte units whose number is odd.
  static constexpr int kKeptRow = 16 * kSliceColumns * 2 + 16, kKept = kSliceGroup * kKeptRow;
  static constexpr int kKeptAt = kOutputsAt + kSliceOutputGroups * kValues;                 // [8 warps]
  static constexpr int kHalfRow = 16 * kSliceColumns + 16, kHalf = kSliceGroup * kHalfRow;  // half of each
  static constexpr int kHalfAt = kKeptAt + kSliceSummaryWarps * kKept;                      // [8 warps]
  static constexpr int kMix = kSliceMixRows * kSliceMixRows * 4;
  static constexpr int kMixAt = kHalfAt + kSliceSummaryWarps * kHalf;  // [2]
  static constexpr int kBarriersAt = kMixAt + 2 * kMix;
  static constexpr int kUnusualAt = kBarriersAt + SliceBarriers::kCount * 8;  // [6][2] whether v has infinity or NaN
  static constexpr int kSelectAt = kUnusualAt + kSliceTurns * 8;              // two constants
  static constexpr int kBytes = kSelectAt + 8;
  static_assert(kQueriesAt % 1024 == 0 && kPrefixAt % 1024 == 0 && kOutputsAt % 1024 == 0 && kStage % 1024 == 0);
  static_assert(kKeptRow / 16 % 2 == 1 && kHalfRow / 16 % 2 == 1 && kMixAt % 16 == 0 && kBarriersAt % 8 == 0);
  static_assert(kBytes <= kMaxSharedBytes);
};

}  // namespace mhla::sm90
