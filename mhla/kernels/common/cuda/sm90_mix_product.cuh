// dmix of 65 to 256 blocks on warpgroups: dS~ S^T, or dP S^T of the causal form, in squares of 64 x 64 over strips of
// 64 columns of all summaries (sm90_mix_product_plan.h). One warpgroup copies, the others share the squares.
// mix_product_kernel, which takes two squares of summaries for each of dmix, reads them several times.
#pragma once

#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_mix_product_plan.h"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// Sums of the squares of a share over `count` strips of the ring, then to dmix in parts.
template <MixProduct kWhich, int kShare>
__device__ inline void multiply_share(std::uint32_t base, int count, int M, float* to) {
  constexpr MixProductPlan kPlan = kMixProductPlans[kWhich];
  const Ring<kPlan.stages> ring{base + kPlan.ring_at()};
  constexpr MixShare kSquares = kPlan.shares[kShare];
  RingPlace<kPlan.stages> at;
  Accumulator acc[kSquares.count] = {};
  for (int n = 0; n < count; ++n, at.next()) {
    const std::uint64_t S = panel_descriptor(base + at.stage * kPlan.stage_bytes()), dS = S + kPlan.sums_at() / 16;
    ring.wait_full(at);
    publish_shared();  // copies were ordinary writes
    begin_products(acc);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < kSquares.count; ++i) {
        multiply_panels(acc[i], dS + kSquares.row[i] * (kPanelBytes / 16) + step * kNextColumns,
                        S + kSquares.column[i] * (kPanelBytes / 16) + step * kNextColumns, true);
      }
    }
    finish_products(acc);
    ring.release(at);
  }
  const int lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4,
            tiles = (M + 63) / 64, first = static_cast<int>(blockIdx.z) * kPlan.rows;
#pragma unroll
  for (int i = 0; i < kSquares.count; ++i) {
    const int row = first + kSquares.row[i], column = kSquares.column[i];
    if (row >= tiles || column >= tiles) continue;
    float* const square = to + (row * tiles + column) * 64 * 64;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int x = j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(square + own * 64 + x) = {acc[i][j][0], acc[i][j][1]};
      *reinterpret_cast<float2*>(square + (own + 8) * 64 + x) = {acc[i][j][2], acc[i][j][3]};
    }
  }
}

// Blocks of threads: [splits][matrices][kinds].
template <MixProduct kWhich>
__global__ void __launch_bounds__(kMixProductPlans[kWhich].threads(), 1)
    panel_mix_product_kernel(Arguments p, Gradients g, int X) {
  constexpr MixProductPlan kPlan = kMixProductPlans[kWhich];
  extern __shared__ __align__(1024) char memory[];  // [stages] S, dS~; ring
  const std::uint32_t base = shared_address(memory);
  const Ring<kPlan.stages> ring{base + kPlan.ring_at()};
  const int group = warpgroup_index(), heads = p.mix_head ? p.Hkv : 1, matrix = blockIdx.y;
  if (threadIdx.x == 0) ring.init(4 * kPlan.readers);
  publish_shared();
  __syncthreads();
  after_previous();
  allow_next();
  const int units = p.units / p.parts,
            start = p.mix_head ? (matrix - p.first_unit / p.parts % p.Hkv + p.Hkv) % p.Hkv : 0;
  const int strips = (X + 63) / 64, tiles = (p.M + 63) / 64;
  const std::int64_t items = start < units ? std::int64_t{(units - start + heads - 1) / heads} * p.parts * strips : 0;
  const int first = static_cast<int>(items * blockIdx.x / gridDim.x),
            end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  float* const to = g.parts + (static_cast<std::int64_t>(matrix) * gridDim.x + blockIdx.x) * tiles * tiles * 64 * 64;
  if (group == 0) {
    keep_registers<MixProductPlan::kCopyRegisters>();
    RingPlace<kPlan.stages> at;
    const int c = threadIdx.x % 8, row0 = static_cast<int>(threadIdx.x) / 8,
              row1 = row0 + static_cast<int>(blockIdx.z) * kPlan.rows * 64;  // of S, of dS~
    for (int item = first; item < end; ++item, at.next()) {
      const int index = item / strips, x = (item - index * strips) * 64 + c * 8;
      const std::int64_t unit = (start + index / p.parts * heads) * p.parts + index % p.parts;
      const std::uint32_t at_stage = base + at.stage * kPlan.stage_bytes() + panel_offset(row0, c);
      const auto copy = [&](const Bf16* from, int row, int count, std::uint32_t to_panel) {
        from += (unit * p.M + row) * X + x;
#pragma unroll
        for (int i = 0; i < count; ++i, from += 16 * X) {
          const bool there = x < X && row + i * 16 < p.M;
          copy16(to_panel + i * 16 * kPanelRowBytes, there ? from : p.summaries, there);
        }
      };
      ring.wait_empty(at);
      copy(p.summaries, row0, 4 * kPlan.columns, at_stage);
      copy(p.mixed, row1, 4 * kPlan.rows, at_stage + kPlan.sums_at());
      ring.copied(at);
    }
    copy_commit();
    copy_wait<0>();
  } else if (group == kPlan.readers) {
    take_registers<kPlan.last_registers>();
    multiply_share<kWhich, kPlan.readers - 1>(base, end - first, p.M, to);
  } else if (group == 1) {
    take_registers<kPlan.reader_registers>();
    multiply_share<kWhich, 0>(base, end - first, p.M, to);
  } else {
    take_registers<kPlan.reader_registers>();
    multiply_share<kWhich, 1>(base, end - first, p.M, to);
  }
}

}  // namespace mhla::sm90
