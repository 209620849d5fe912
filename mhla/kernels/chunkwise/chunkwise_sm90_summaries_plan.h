// Summaries of chunks of more than 64 tokens on Hopper, all columns of v at once: how shared memory is laid out. Pure
// functions, tested without a GPU.
//
// A block of threads takes chunks:
//   2 warpgroups  64 rows each of S = k~^T v, and of z = k~^T 1
//   4 warps       copies: one asks for k and v; one maps k, and clears what lies behind the end of a chunk
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_outputs_plan.h"

namespace mhla::sm90 {

// Features of 65 to 128: two panels. kParts: of the columns, 65 to 128 each.
template <int kParts_>
struct SummaryRing {
  static constexpr int kPanels = 2, kParts = kParts_, kGroups = kPanels;
  static constexpr int kValuePanels = kPanels * kParts, kColumns = 64 * kValuePanels;
  static constexpr int kThreads = 128 * (1 + kGroups), kWarps = 4 * kGroups;
  static constexpr int kPanel = 64 * 128;  // 64 tokens, 64 values, swizzled over 128 bytes
  static constexpr int kStage = (kPanels + kValuePanels) * kPanel, kValuesAt = kPanels * kPanel;  // k, v
  static constexpr int kStages = kParts == 2 ? 4 : 6;
  static constexpr int kOnesAt = kStages * kStage, kBarriersAt = kOnesAt + 1024;
  // Barriers of 8 bytes each, one a stage.
  static constexpr int kCopied = 0, kReady = kCopied + kStages, kFree = kReady + kStages, kBarriers = kFree + kStages;
  static constexpr int kBytes = kBarriersAt + kBarriers * 8;
  static constexpr int kStartRegisters = 65536 / kThreads / 8 * 8, kCopyRegisters = 40, kSumRegisters = 232;
  static_assert(kCopyRegisters + kGroups * kSumRegisters <= 3 * kStartRegisters);
  static_assert(kBytes <= kMaxSharedBytes);
};

// Whether the summaries of a causal problem on panels are made by this kernel.
constexpr bool takes_summary_ring(std::int64_t D, std::int64_t E) { return tiles_of(D, E).rows == 8; }

}  // namespace mhla::sm90
