// Phase 1 on warpgroups: S_b = k~^T v and z_b = k~^T 1 of blocks, for heads whose tiles fill panels. One warpgroup
// copies k and v, the other one multiplies and takes the features transposed from shared memory. Two blocks of threads
// share a multiprocessor, so that one multiplies while the other writes.
#pragma once

#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// How a kernel over tiles of 64 tokens lies on a multiprocessor.
template <class S>
struct SummaryTiles {
  static constexpr int kPanels = S::kRows / 4, kStages = kPanels == 1 ? 6 : 3, kThreads = 2 * kGroupThreads;
  static constexpr int kTile = kPanels * kPanelBytes, kStage = 2 * kTile;  // of k or v; of both
  static constexpr int kOnesAt = kStages * kStage, kRingAt = kOnesAt + kPanelAlign;
  static constexpr int kBytes = kPanelAlign + kRingAt + Ring<kStages>::kBytes;
  static constexpr int kBlocks = 2;  // of threads on a multiprocessor
  static constexpr bool kMoveRegisters = kPanels == 2;
  static_assert(kBytes <= kMaxSharedBytes && kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

template <class S>
__global__ void __launch_bounds__(SummaryTiles<S>::kThreads, SummaryTiles<S>::kBlocks)
    panel_summary_kernel(Arguments p) {
  using T = SummaryTiles<S>;
  extern __shared__ char unaligned[];  // [kStages] k, v; ones; ring
  char* const shared = aligned_panels(unaligned);
  const std::uint32_t stages = shared_address(shared);
  const Ring<T::kStages> ring{stages + T::kRingAt};
  const int items = p.units * p.M, group = warpgroup_index(), D = S::D(p), E = S::E(p);
  if (threadIdx.x == 0) ring.init(4);
  for (int i = threadIdx.x; i < kPanelAlign / 4; i += T::kThreads) {
    reinterpret_cast<std::uint32_t*>(shared + T::kOnesAt)[i] = 0x3f803f80u;
  }
  publish_shared();
  __syncthreads();
  after_previous();
  allow_next();
  RingPlace<T::kStages> at;
  if (group == 0) {
    if constexpr (T::kMoveRegisters) keep_registers<40>();
    TileMover mover;
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
      const Item item(p, i);
      const Bf16 *k = item.u.k(p), *v = item.u.v(p);
      for (int first = 0; first < static_cast<int>(item.block.size); first += 64, at.next()) {
        mover.find(item.block, first);
        ring.wait_empty(at);
        const std::uint32_t stage = stages + at.stage * T::kStage;
        mover.copy<T::kPanels>(k, p.k.token, D, stage);
        mover.copy<T::kPanels>(v, p.v.token, E, stage + T::kTile);
        ring.copied(at);
      }
    }
    copy_commit();
    copy_wait<0>();
  } else {
    if constexpr (T::kMoveRegisters) take_registers<216>();
    const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    const std::uint64_t ones = panel_descriptor(stages + T::kOnesAt);
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
      const int size = item_size(p, i);
      Accumulator acc[T::kPanels][T::kPanels] = {};  // 64 rows and 64 columns each
      float z[T::kPanels][4] = {};
      for (int first = 0; first < size; first += 64, at.next()) {
        const std::uint32_t stage = stages + at.stage * T::kStage;
        const std::uint64_t v = panel_descriptor(stage + T::kTile);
        ring.wait_full(at);
        publish_shared();  // copies were ordinary writes
        std::uint32_t a[T::kPanels][4][4];
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) {
          load_panel_columns(a[rows], stage + rows * kPanelBytes);
#pragma unroll
          for (int step = 0; step < 4; ++step) feature_fragment(S::map(p), a[rows][step]);
          if (size - first < 64) cut_rows(a[rows], size - first);
          begin_products(acc[rows], z[rows]);
        }
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) {
#pragma unroll
          for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int panel = 0; panel < T::kPanels; ++panel) {
              multiply_panel_rows(acc[rows][panel], a[rows][step], v + panel * (kPanelBytes / 16) + step * kNextRows);
            }
            add_row_sums(z[rows], a[rows][step], ones);
          }
        }
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) finish_products(acc[rows], z[rows]);
        ring.release(at);
      }
      Bf16* to = p.summaries + static_cast<std::int64_t>(i) * (D * E + D);
#pragma unroll
      for (int rows = 0; rows < T::kPanels; ++rows) {
        const int d = rows * 64 + row;
#pragma unroll
        for (int panel = 0; panel < T::kPanels; ++panel) {
          const int column = panel * 64, X = min(64, E - column);
          write_panel_row<0>(acc[rows][panel], 1.0f, d < D, to + d * E + column, X);
          write_panel_row<1>(acc[rows][panel], 1.0f, d + 8 < D, to + (d + 8) * E + column, X);
        }
        if (lane % 4 == 0 && d < D) to[D * E + d] = __float2bfloat16_rn(z[rows][0]);
        if (lane % 4 == 0 && d + 8 < D) to[D * E + d + 8] = __float2bfloat16_rn(z[rows][2]);
      }
    }
  }
}

}  // namespace mhla::sm90
