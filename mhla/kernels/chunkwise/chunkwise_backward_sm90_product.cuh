// dmix of the causal form for 129 to 256 chunks: dP S^T in squares of 64 x 64 on and below the diagonal, over strips of
// 64 columns of all summaries. One warpgroup copies; three others share the ten squares. mix_product_kernel, which
// takes two squares of summaries for each of dmix, reads them two and a half times.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_plan.h"
#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// Sums of the squares of a share over `count` tiles of the ring, then to dmix in parts.
template <int kShare>
__device__ inline void multiply_share(const Ring<MixProductPlan::kStages>& ring, std::uint32_t base, int count, int M,
                                      float* to) {
  constexpr MixProductPlan kPlan = {};
  constexpr MixShare kSquares = kMixShares[kShare];
  RingPlace<MixProductPlan::kStages> at;
  Accumulator acc[kSquares.count] = {};
  for (int n = 0; n < count; ++n, at.next()) {
    const std::uint64_t S = panel_descriptor(base + at.stage * kPlan.stage_bytes()), dP = S + kPlan.half_bytes() / 16;
    ring.wait_full(at);
    publish_shared();  // copies were ordinary writes
    begin_products(acc);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < kSquares.count; ++i) {
        multiply_panels(acc[i], dP + kSquares.row[i] * (kPanelBytes / 16) + step * kNextColumns,
                        S + kSquares.column[i] * (kPanelBytes / 16) + step * kNextColumns, true);
      }
    }
    finish_products(acc);
    ring.release(at);
  }
  const int lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4,
            tiles = (M + 63) / 64;
#pragma unroll
  for (int i = 0; i < kSquares.count; ++i) {
    if (kSquares.row[i] >= tiles) continue;
    float* const square = to + (kSquares.row[i] * tiles + kSquares.column[i]) * 64 * 64;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int x = j * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(square + own * 64 + x) = {acc[i][j][0], acc[i][j][1]};
      *reinterpret_cast<float2*>(square + (own + 8) * 64 + x) = {acc[i][j][2], acc[i][j][3]};
    }
  }
}

template <int>
__global__ void __launch_bounds__(MixProductPlan::kThreads, 1)
    panel_mix_product_kernel(Arguments p, Gradients g, int X) {
  constexpr MixProductPlan kPlan = {};
  extern __shared__ __align__(1024) char memory[];  // [kStages] S, dP; ring
  const std::uint32_t base = shared_address(memory);
  const Ring<MixProductPlan::kStages> ring{base + kPlan.ring_at()};
  const int group = warpgroup_index(), heads = p.mix_head ? p.Hkv : 1, matrix = blockIdx.y;
  if (threadIdx.x == 0) ring.init(12);
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
    RingPlace<MixProductPlan::kStages> at;
    const int c = threadIdx.x % 8, row0 = static_cast<int>(threadIdx.x) / 8;
    for (int item = first; item < end; ++item, at.next()) {
      const int index = item / strips, x = (item - index * strips) * 64 + c * 8;
      const std::int64_t unit = (start + index / p.parts * heads) * p.parts + index % p.parts;
      const std::int64_t offset = (unit * p.M + row0) * X + x;
      const std::uint32_t at_stage = base + at.stage * kPlan.stage_bytes() + panel_offset(row0, c);
      const Bf16 *S = p.summaries + offset, *dP = p.mixed + offset;
      ring.wait_empty(at);
#pragma unroll
      for (int i = 0; i < 16; ++i, S += 16 * X, dP += 16 * X) {
        const bool there = x < X && row0 + i * 16 < p.M;
        copy16(at_stage + i * 16 * kPanelRowBytes, there ? S : p.summaries, there);
        copy16(at_stage + kPlan.half_bytes() + i * 16 * kPanelRowBytes, there ? dP : p.summaries, there);
      }
      ring.copied(at);
    }
    copy_commit();
    copy_wait<0>();
  } else if (group == 1) {
    take_registers<MixProductPlan::kReaderRegisters>();
    multiply_share<0>(ring, base, end - first, p.M, to);
  } else if (group == 2) {
    take_registers<MixProductPlan::kReaderRegisters>();
    multiply_share<1>(ring, base, end - first, p.M, to);
  } else {
    take_registers<MixProductPlan::kLastRegisters>();
    multiply_share<2>(ring, base, end - first, p.M, to);
  }
}

}  // namespace mhla::sm90
