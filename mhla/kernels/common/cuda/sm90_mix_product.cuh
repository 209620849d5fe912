// dmix of 65 to 256 blocks on warpgroups: dS~ S^T, or dP S^T of the causal form, in squares of 64 x 64 over strips of
// 64 columns of all summaries (sm90_mix_product_plan.h). One warpgroup copies, the others share the squares. With up to
// 128 blocks dS = mix^T dS~ comes from the same strips.
// mix_product_kernel, which takes two squares of summaries for each of dmix, reads them several times.
#pragma once

#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_mix_product_plan.h"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// Sums of the squares of a share over the strips of the ring, from `first` to `end`, then to dmix in parts. Where the
// plan says so, write(item, dS) gets a row of squares of dS of every strip.
template <MixProduct kWhich, int kShare, class F>
__device__ inline void multiply_share(std::uint32_t base, int first_item, int end_item, int M, float* to,
                                      const F& write) {
  constexpr MixProductPlan kPlan = kMixProductPlans[kWhich];
  const Ring<kPlan.stages> ring{base + kPlan.ring_at()};
  constexpr MixShare kSquares = kPlan.shares[kShare];
  RingPlace<kPlan.stages> at;
  Accumulator acc[kSquares.count] = {};
  for (int item = first_item; item < end_item; ++item, at.next()) {
    const std::uint64_t S = panel_descriptor(base + at.stage * kPlan.stage_bytes()), dS = S + kPlan.sums_at() / 16;
    const auto multiply = [&] {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < kSquares.count; ++i) {
          multiply_panels(acc[i], dS + kSquares.row[i] * (kPanelBytes / 16) + step * kNextColumns,
                          S + kSquares.column[i] * (kPanelBytes / 16) + step * kNextColumns, true);
        }
      }
    };
    ring.wait_full(at);
    publish_shared();  // copies were ordinary writes
    if constexpr (kPlan.back) {
      const std::uint64_t mix = panel_descriptor(base + kPlan.mix_at() + kShare * kPanelBytes);
      Accumulator back = {};
      begin_products(acc, back);
      multiply();
#pragma unroll
      for (int step = 0; step < 4 * kPlan.rows; ++step) {
        multiply_panel_by_rows(back, mix + step / 4 * kPlan.rows * (kPanelBytes / 16) + step % 4 * kNextColumns,
                               dS + step * kNextRows, true);
      }
      finish_products(acc, back);
      ring.release(at);
      write(item, back);
    } else {
      begin_products(acc);
      multiply();
      finish_products(acc);
      ring.release(at);
    }
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

// Blocks of threads: [splits][matrices][kinds]. back_mix: mix^T as p.packed_mix has mix, where the plan says so.
template <MixProduct kWhich>
__global__ void __launch_bounds__(kMixProductPlans[kWhich].threads(), 1)
    panel_mix_product_kernel(Arguments p, Gradients g, const uint4* back_mix, int X) {
  constexpr MixProductPlan kPlan = kMixProductPlans[kWhich];
  extern __shared__ __align__(1024) char memory[];  // [stages] S, dS~; mix^T; ring
  const std::uint32_t base = shared_address(memory);
  const Ring<kPlan.stages> ring{base + kPlan.ring_at()};
  const int group = warpgroup_index(), matrix = blockIdx.y;
  if (threadIdx.x == 0) ring.init(4 * kPlan.readers);
  if constexpr (kPlan.back) {  // packed long before
    const uint4* const packed = back_mix + matrix * packed_mix_units(p.mix_rows, p.M);
    for (int i = threadIdx.x; i < kPlan.mix_bytes() / 16; i += kPlan.threads())
      copy16(base + kPlan.mix_at() + i * 16, packed + i, true);
    copy_commit();
    copy_wait<0>();
  }
  publish_shared();
  __syncthreads();
  after_previous();
  allow_next();
  const MatrixStrips<64> strips(p, X);
  const int tiles = (p.M + 63) / 64;
  float* const to = g.parts + (static_cast<std::int64_t>(matrix) * gridDim.x + blockIdx.x) * tiles * tiles * 64 * 64;
  const auto write = [&](int item, const Accumulator& dS) {
    const int row = (group - 1) * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + threadIdx.x % 32 / 4,
              width = min(64, X - strips.column(item));
    Bf16* const at = p.mixed + strips.at(item) + static_cast<std::int64_t>(row) * X;
    write_panel_row<0>(dS, 1.0f, row < p.M, at, width);
    write_panel_row<1>(dS, 1.0f, row + 8 < p.M, at + std::int64_t{8} * X, width);
  };
  if (group == 0) {
    keep_registers<MixProductPlan::kCopyRegisters>();
    RingPlace<kPlan.stages> at;
    const int c = threadIdx.x % 8, row0 = static_cast<int>(threadIdx.x) / 8,
              row1 = row0 + static_cast<int>(blockIdx.z) * kPlan.rows * 64;  // of S, of dS~
    for (int item = strips.first; item < strips.end; ++item, at.next()) {
      const bool inside = strips.column(item) + c * 8 < X;
      const std::int64_t offset = strips.at(item) + c * 8;
      const std::uint32_t at_stage = base + at.stage * kPlan.stage_bytes() + panel_offset(row0, c);
      const auto copy = [&](const Bf16* from, int row, int count, std::uint32_t to_panel) {
        from += offset + static_cast<std::int64_t>(row) * X;
#pragma unroll
        for (int i = 0; i < count; ++i, from += 16 * X) {
          const bool there = inside && row + i * 16 < p.M;
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
    multiply_share<kWhich, kPlan.readers - 1>(base, strips.first, strips.end, p.M, to, write);
  } else if (group == 1) {
    take_registers<kPlan.reader_registers>();
    multiply_share<kWhich, 0>(base, strips.first, strips.end, p.M, to, write);
  } else {
    take_registers<kPlan.reader_registers>();
    multiply_share<kWhich, 1>(base, strips.first, strips.end, p.M, to, write);
  }
}

}  // namespace mhla::sm90
