// Phase 1: S_b = k~^T v and z_b = k~^T 1 of blocks (sm90_summaries.cuh is faster where it fits).
#pragma once

#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {

// One warp per 16 rows; tiles of kPhaseTokens tokens, the next ones on their way, also those of the next block.
template <class S>
__global__ void __launch_bounds__(S::kRows * 32) summary_kernel(Arguments p) {
  after_previous();
  constexpr int kKeyBytes = kPhaseTokens * S::kPitch, kStage = 2 * kKeyBytes, kStages = phase_stages(S::kTiles);
  extern __shared__ __align__(16) char shared[];  // [kStages][keys, values]
  const int items = p.units * p.M, row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  int next = blockIdx.x, next_first = 0, next_slot = 0;  // of the next fetch
  Item coming(p, min(next, items - 1));
  const auto skip_empty = [&] {  // their sums take no tile
    while (next < items && coming.block.size == 0) {
      next += gridDim.x;
      if (next < items) coming = Item(p, next);
    }
  };
  if (p.maybe_ranges != nullptr) skip_empty();
  const auto fetch = [&] {
    if (next < items) {
      const std::uint32_t stage = shared_address(shared + next_slot * kStage);
      copy_keys<S, kPhaseTokens, S::kRows * 32>(p, coming.u.k(p), coming.u.v(p), coming.block, next_first, stage,
                                                stage + kKeyBytes, threadIdx.x);
      next_first += kPhaseTokens;
      if (next_first >= static_cast<int>(coming.block.size)) {
        next += gridDim.x, next_first = 0;
        if (next < items) coming = Item(p, next);
        if (p.maybe_ranges != nullptr) skip_empty();
      }
    }
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch();
  int slot = 0;
  for (int at = blockIdx.x; at < items; at += gridDim.x) {
    const int size = item_size(p, at);
    Summary<S> summary;
    for (int first = 0; first < size; first += kPhaseTokens) {
      copy_wait<kStages - 2>();
      __syncthreads();  // all copies of this tile are there, and all are done with the one before
      fetch();
      const std::uint32_t stage = shared_address(shared + slot * kStage);
#pragma unroll
      for (int step = 0; step < kPhaseTokens / 16; ++step) {
        const int tokens = size - first - step * 16;
        if (tokens <= 0) break;
        summary.add(p, stage + step * 16 * S::kPitch, stage + kKeyBytes + step * 16 * S::kPitch, tokens, row);
      }
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    Bf16* to = p.summaries + static_cast<std::int64_t>(at) * (D * E + D);
    const int d = row + lane / 4;
    write_row<0, false>(summary.acc, 1.0f, d < D, to + d * E, E);
    write_row<1, false>(summary.acc, 1.0f, d + 8 < D, to + (d + 8) * E, E);
    summary.each_z(p, row, [&](int x, Bf16 value) { to[D * E + x] = value; });
  }
  copy_wait<0>();
}

}  // namespace mhla::sm80
