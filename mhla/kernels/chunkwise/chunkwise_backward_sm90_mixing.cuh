// Mixing of the causal form, forward and back, and dmix, in one pass over summaries: for up to 32 rows of mix and where
// dP does not depend on P, so without a normaliser. A tile has 64 rows, S of 32 chunks and dP of 32 chunks; with
// mix below the diagonal in one quarter of a matrix and its transpose in another one,
//   [P; dS] = [mix 0; 0 mix^T] [S; dP]    and    dmix = dP S^T
// are products of 64 x 64. P takes the place of S unless forward kept it, dS that of dP.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_plan.h"
#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"
#include "mhla/kernels/common/cuda/warpgroup_narrow.cuh"

namespace mhla::sm90 {

struct MixBothTiles {
  static constexpr MixBothPlan kPlan = {};
  static constexpr int kStages = MixBothPlan::kStages, kPanels = MixBothPlan::kPanels, kHalf = kMostMixedAtOnce;
  static_assert(kPlan.blocks() * (kPlan.bytes() + 1024) <= kAllSharedBytes);
};

// What row `row` of a tile takes of row `from`.
__device__ inline float mix_both(const Arguments& p, const float* mix, int row, int from) {
  constexpr int kHalf = kMostMixedAtOnce;
  const bool back = row >= kHalf;
  const int to = back ? from - kHalf : row, at = back ? row - kHalf : from;  // mix[to][at]
  if (to < 0 || at >= to || to >= p.M) return 0.0f;
  return mix[to * p.mix_row + at * p.mix_column];
}
__device__ inline bool mixes_both(int row, int from) {
  constexpr int kHalf = kMostMixedAtOnce;
  return row < kHalf ? from < row : from > row;
}

// Tiles of the units whose mix is that of a block's matrix, every gridDim.x-th run of them: dmix in parts as
// mix_sum_kernel takes them, `rows` each way.
template <bool kMixGradient>
__global__ void __launch_bounds__(MixBothPlan::kThreads, MixBothPlan::blocks())
    panel_mix_both_kernel(Arguments p, Gradients g, int X, int rows) {
  using T = MixBothTiles;
  constexpr MixBothPlan kPlan = T::kPlan;
  extern __shared__ __align__(1024) char memory[];  // [kStages] tiles; ring
  char* const shared = memory;
  const std::uint32_t base = shared_address(shared);
  const Ring<T::kStages> ring{base + kPlan.ring_at()};
  const int group = warpgroup_index(), matrix = blockIdx.y;
  if (threadIdx.x == 0) ring.init(4);
  publish_shared();
  __syncthreads();
  after_previous();
  allow_next();
  const MatrixStrips<kPlan.columns()> strips(p, X);
  RingPlace<T::kStages> at;
  if (group == 0) {
    keep_registers<MixBothPlan::kCopyRegisters>();
    const int c = threadIdx.x % 8, row0 = static_cast<int>(threadIdx.x) / 8;
    for (int item = strips.first; item < strips.end; ++item, at.next()) {
      const std::int64_t offset = strips.at(item);
      const int x0 = strips.column(item);
      const std::uint32_t to = base + at.stage * kPlan.stage_bytes();
      ring.wait_empty(at);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = row0 + i * 16, chunk = row % T::kHalf;
        const Bf16* from = (row < T::kHalf ? p.summaries : p.mixed) + offset + static_cast<std::int64_t>(chunk) * X;
#pragma unroll
        for (int panel = 0; panel < T::kPanels; ++panel) {
          const int x = panel * 64 + c * 8;
          const bool there = chunk < p.M && x0 + x < X;
          copy16(to + panel * kPanelBytes + panel_offset(row, c), there ? from + x : p.summaries, there);
        }
      }
      ring.copied(at);
    }
    copy_commit();
    copy_wait<0>();
    return;
  }
  take_registers<MixBothPlan::kReaderRegisters>();
  const int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4, own = warp * 16 + lane / 4;
  const float* const mix = p.mix + matrix * p.mix_head;
  const bool kept = p.query_sums != p.summaries;  // P
  std::uint32_t a[4][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = own + i % 2 * 8, from = step * 16 + i / 2 * 8 + lane % 4 * 2;
      a[step][i] = pack_bf16(mix_both(p, mix, row, from), mix_both(p, mix, row, from + 1));
    }
  }
  NarrowSums d_mix = {};  // [S; dP] S^T
  for (int item = strips.first; item < strips.end; ++item, at.next()) {
    char* const tile = shared + at.stage * kPlan.stage_bytes();
    const std::uint64_t rows_of = panel_descriptor(shared_address(tile));
    ring.wait_full(at);
    publish_shared();    // copies were ordinary writes
    bool finite = true;  // zero times NaN is NaN
    each_panel_word<kPlan.stage_bytes()>(tile, [&](const uint4& x) { finite = finite && finite_words(x); });
    finite = all_hold(group + 1, kGroupThreads, finite);
    Accumulator acc[T::kPanels] = {};
    const auto multiply = [&] {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int panel = 0; panel < T::kPanels; ++panel) {
          multiply_panel_rows(acc[panel], a[step], rows_of + panel * (kPanelBytes / 16) + step * kNextRows);
        }
      }
    };
    if constexpr (kMixGradient) {
      settle_sums(d_mix);
      warpgroup_begin();
#pragma unroll
      for (int step = 0; step < 4 * T::kPanels; ++step) {
        const std::uint64_t x = rows_of + step / 4 * (kPanelBytes / 16) + step % 4 * kNextColumns;
        multiply_half_panels(d_mix, x, x, true);
      }
      warpgroup_commit();
      warpgroup_wait<0>();
      settle_sums(d_mix);
    }
    if (!finite) {
#pragma unroll 1
      for (int from = 0; from < 64; ++from) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = own + half * 8;
          if (!mixes_both(row, from)) continue;
          const float m = unpack_bf16(pack_bf16(mix_both(p, mix, row, from), 0.0f)).x;
#pragma unroll
          for (int panel = 0; panel < T::kPanels; ++panel) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              const float2 y = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
                  tile + panel * kPanelBytes + panel_offset(from, j) + lane % 4 * 4));
              float(&sum)[4] = acc[panel][j];
              if (!isfinite(y.x)) sum[2 * half] = fmaf(m, y.x, sum[2 * half]);
              if (!isfinite(y.y)) sum[2 * half + 1] = fmaf(m, y.y, sum[2 * half + 1]);
            }
          }
        }
      }
      warpgroup_barrier(group);
      make_finite<kPlan.stage_bytes()>(tile);
      publish_shared();
      warpgroup_barrier(group);
    }
    begin_products(acc);
    multiply();
    finish_products(acc);
    ring.release(at);
    if (own < T::kHalf && kept) continue;
    const int x0 = strips.column(item), chunk = own % T::kHalf;
    Bf16* const to = (own < T::kHalf ? p.summaries : p.mixed) + strips.at(item) + static_cast<std::int64_t>(chunk) * X;
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) {
      const int width = min(64, X - x0 - panel * 64);
      write_panel_row<0>(acc[panel], 1.0f, chunk < p.M, to + panel * 64, width);
      write_panel_row<1>(acc[panel], 1.0f, chunk + 8 < p.M, to + std::int64_t{8} * X + panel * 64, width);
    }
  }
  if constexpr (!kMixGradient) return;
  if (own < T::kHalf) return;
  float* const to = g.parts + (static_cast<std::int64_t>(matrix) * gridDim.x + blockIdx.x) * rows * rows;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int i = own - T::kHalf + c / 2 * 8, b = j * 8 + lane % 4 * 2 + c % 2;
      if (i < rows && b < rows) to[i * rows + b] = d_mix[j][c];
    }
  }
}

}  // namespace mhla::sm90
