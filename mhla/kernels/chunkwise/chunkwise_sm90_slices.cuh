// What the roles of the slice kernel share (chunkwise_sm90_slices_plan.h): arguments, shared memory, items.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_slices_plan.h"
#include "mhla/kernels/common/cuda/sm90_boxes.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"
#include "mhla/kernels/common/cuda/warpgroup_narrow.cuh"

namespace mhla::sm90 {

struct SliceArguments {
  TokenBoxes q, k, v, out;                     // 64 columns of 64 tokens; of v 32; of out 32 of 16 tokens
  Strided<Bf16> out_rows;                      // for boxes that a sequence ends in
  const TokenRange* maybe_ranges;              // packed sequences; not given: one a batch element, N tokens each
  const float* mix;                            // [Hm, L, L]
  std::int64_t mix_head, mix_row, mix_column;  // strides; mix_head is 0 when shared
  int items, slices, H, group, N, L;           // items: slices of query heads of sequences
  float scale;
  FeatureMap map;
};

// phi of a kernel: known to the compiler, or one of the others.
template <Known kKnown>
__device__ inline FeatureMap slice_map(const SliceArguments& p) {
  if constexpr (kKnown == Known::kReluEps) return FeatureMap::kReluEps;
  if constexpr (kKnown == Known::kIdentity) return FeatureMap::kIdentity;
  return p.map;
}

// 32 columns of a query head of a sequence.
struct SliceItem {
  int head, column, batch, first, length, chunks;
  __device__ SliceItem(const SliceArguments& p, int item) {
    const int row = item / p.slices, sequence = row / p.H;
    column = (item - row * p.slices) * kSliceColumns, head = row - sequence * p.H;
    batch = sequence, first = 0, length = p.N;
    if (p.maybe_ranges != nullptr) {
      const longlong2 range = __ldcg(reinterpret_cast<const longlong2*>(p.maybe_ranges + sequence));  // start, length
      batch = 0, first = static_cast<int>(range.x), length = static_cast<int>(range.y);
    }
    chunks = (length + kSliceChunk - 1) / kSliceChunk;
  }
};

__device__ inline float shared_float(std::uint32_t at) { return __uint_as_float(shared_word(at)); }

struct SliceShared {
  std::uint32_t base;
  // Barrier i of a kind (SliceBarriers).
  [[nodiscard]] __device__ std::uint32_t barrier(int kind, int i) const {
    return base + SliceMemory::kBarriersAt + (kind + i) * 8;
  }
  [[nodiscard]] __device__ std::uint32_t stage(int i) const { return base + i * SliceMemory::kStage; }
  [[nodiscard]] __device__ std::uint32_t mix(int i) const {  // [32][32] f32
    return base + SliceMemory::kMixAt + i * SliceMemory::kMix;
  }
  // Whether prepared v has infinity or NaN: one word for each warp that prepares.
  [[nodiscard]] __device__ std::uint32_t unusual(int slot) const { return base + SliceMemory::kUnusualAt + slot * 8; }
};

// Which of the two places of mix the k-th item of a block of threads uses, and in which phase. A matrix that all heads
// share stays in the first one.
__device__ inline int mix_place(const SliceArguments& p, int k) { return p.mix_head != 0 ? k & 1 : 0; }
__device__ inline int mix_parity(int k) { return k >> 1 & 1; }
__device__ inline void wait_mix(const SliceArguments& p, const SliceShared& s, int k) {
  if (p.mix_head != 0) barrier_wait(s.barrier(SliceBarriers::kMix, k & 1), mix_parity(k));
}
__device__ inline void leave_mix(const SliceArguments& p, const SliceShared& s, int k) {  // a whole warp
  if (p.mix_head == 0) return;
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(s.barrier(SliceBarriers::kMixFree, k & 1));
}

// Rows of mix up to the diagonal, zeros elsewhere, by `threads` threads of which this is `thread`.
__device__ inline void load_slice_mix(const SliceArguments& p, int head, std::uint32_t to, int thread, int threads) {
  const float* from = p.mix + head * p.mix_head;
  for (int i = thread; i < kSliceMixRows * kSliceMixRows; i += threads) {
    const int row = i / kSliceMixRows, column = i % kSliceMixRows;
    const bool used = row < p.L && column <= row;
    set_shared_word(to + i * 4, __float_as_uint(used ? from[row * p.mix_row + column * p.mix_column] : 0.0f));
  }
}

// One arrival for a warp, when all its lanes are done.
__device__ inline void warp_arrive(std::uint32_t barrier) {
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

}  // namespace mhla::sm90
