// Mixing of the causal form, forward and back, and dmix, in one pass over summaries
// (chunkwise_backward_sm90_mixing.cuh) for 65 to 128 rows of mix, without a normaliser. A tile has 64 columns of S and
// of dP of all chunks. One warpgroup copies; two others take a square of 64 chunks each: P and dS of it, and a share of
// dmix, in squares (0,0) and (1,1), or (1,0).
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_plan.h"
#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// `sum` += m y for the values y of 64 rows of a panel that are infinite or NaN, where used(row, from): m of a panel.
template <class Used>
__device__ inline void add_unusual_rows(Accumulator& sum, const char* mix, const char* values, int own,
                                        const Used& used) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int from = 0; from < 64; ++from) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own + half * 8;
      if (!used(row, from)) continue;
      const float m =
          __bfloat162float(*reinterpret_cast<const Bf16*>(mix + panel_offset(row, from / 8) + from % 8 * 2));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 y =
            unpack_bf16(*reinterpret_cast<const std::uint32_t*>(values + panel_offset(from, j) + lane % 4 * 4));
        if (!isfinite(y.x)) sum[j][2 * half] = fmaf(m, y.x, sum[j][2 * half]);
        if (!isfinite(y.y)) sum[j][2 * half + 1] = fmaf(m, y.y, sum[j][2 * half + 1]);
      }
    }
  }
}

// back_mix: as p.packed_mix, transposed. dmix in parts as mix_sum_kernel takes them, tiles of `rows` each way.
template <bool kMixGradient>
__global__ void __launch_bounds__(MixSquaresPlan::kThreads, 1)
    panel_mix_squares_kernel(Arguments p, Gradients g, const uint4* back_mix, int X, int rows) {
  constexpr MixSquaresPlan kPlan = {};
  constexpr int kStages = MixSquaresPlan::kStages, kReaders = 2 * kGroupThreads, kHalf16 = kPlan.half_bytes() / 16;
  extern __shared__ __align__(1024) char memory[];  // mix, its transpose; [kStages] S, dP; ring
  char* const shared = memory;
  const std::uint32_t base = shared_address(shared);
  const Ring<kStages> ring{base + kPlan.ring_at()};
  const int group = warpgroup_index(), matrix = blockIdx.y;
  if (threadIdx.x == 0) ring.init(8);
  const std::int64_t packed = packed_mix_units(p.mix_rows, p.M);
  for (int i = threadIdx.x; i < kPlan.mix_bytes() / 16; i += MixSquaresPlan::kThreads) {  // packed long before
    copy16(base + i * 16, p.packed_mix + matrix * packed + i, true);
    copy16(base + kPlan.mix_bytes() + i * 16, back_mix + matrix * packed + i, true);
  }
  copy_commit();
  copy_wait<0>();
  publish_shared();
  __syncthreads();
  after_previous();
  allow_next();
  const MatrixStrips<64> strips(p, X);
  RingPlace<kStages> at;
  if (group == 0) {
    keep_registers<MixSquaresPlan::kCopyRegisters>();
    const int c = threadIdx.x % 8, row0 = static_cast<int>(threadIdx.x) / 8;
    for (int item = strips.first; item < strips.end; ++item, at.next()) {
      const std::int64_t offset = strips.at(item) + static_cast<std::int64_t>(row0) * X + c * 8;
      const bool inside = strips.column(item) + c * 8 < X;
      const std::uint32_t to = base + kPlan.stages_at() + at.stage * kPlan.stage_bytes() + panel_offset(row0, c);
      const Bf16 *S = p.summaries + offset, *dP = p.mixed + offset;
      ring.wait_empty(at);
#pragma unroll
      for (int i = 0; i < 8; ++i, S += 16 * X, dP += 16 * X) {
        const bool there = inside && row0 + i * 16 < p.M;
        copy16(to + i * 16 * kPanelRowBytes, there ? S : p.summaries, there);
        copy16(to + kPlan.half_bytes() + i * 16 * kPanelRowBytes, there ? dP : p.summaries, there);
      }
      ring.copied(at);
    }
    copy_commit();
    copy_wait<0>();
    return;
  }
  take_registers<MixSquaresPlan::kReaderRegisters>();
  const int square = group - 1, lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
  const std::uint64_t mix = panel_descriptor(base + square * kPanelBytes), back = mix + kPlan.mix_bytes() / 16;
  const char* const mix_panel = shared + square * kPlan.half_bytes() + square * kPanelBytes;
  constexpr int kSquare16 = kPanelBytes / 16;
  const bool kept = p.query_sums != p.summaries;  // P, by forward
  Accumulator d_mix[2] = {};
  for (int item = strips.first; item < strips.end; ++item, at.next()) {
    char* const tile = shared + kPlan.stages_at() + at.stage * kPlan.stage_bytes();
    char *const own_s = tile + square * kPanelBytes, *const own_dp = own_s + kPlan.half_bytes();
    const std::uint64_t S = panel_descriptor(shared_address(tile)), dP = S + kHalf16;
    Accumulator acc[2] = {};  // P, dS
    const auto multiply = [&](Accumulator& sum, std::uint64_t left, std::uint64_t right, int from) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        multiply_panel_by_rows(sum, left + from * kHalf16 + step * kNextColumns, right + (from * 4 + step) * kNextRows,
                               true);
      }
    };
    ring.wait_full(at);
    publish_shared();    // copies were ordinary writes
    bool finite = true;  // zero times NaN is NaN
    each_panel_word<kPanelBytes>(own_s, [&](const uint4& x) { finite = finite && finite_words(x); });
    each_panel_word<kPanelBytes>(own_dp, [&](const uint4& x) { finite = finite && finite_words(x); });
    begin_products(acc);
    begin_products(d_mix);
    if (square == 0) {
      multiply(acc[1], back, dP, 1);
      if constexpr (kMixGradient) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_panels(d_mix[0], dP + step * kNextColumns, S + step * kNextColumns, true);
          multiply_panels(d_mix[1], dP + kSquare16 + step * kNextColumns, S + kSquare16 + step * kNextColumns, true);
        }
      }
    } else {
      multiply(acc[0], mix, S, 0);
      if constexpr (kMixGradient) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          multiply_panels(d_mix[0], dP + kSquare16 + step * kNextColumns, S + step * kNextColumns, true);
        }
      }
    }
    finish_products(acc);
    finish_products(d_mix);
    if (!all_hold(4, kReaders, finite)) {  // and all have read what is changed now
      add_unusual_rows(acc[0], mix_panel, own_s, own, [](int row, int from) { return from < row; });
      add_unusual_rows(acc[1], mix_panel + kPlan.mix_bytes(), own_dp, own,
                       [](int row, int from) { return from > row; });
      warpgroup_barrier(group);
      make_finite<kPanelBytes>(own_s);
      make_finite<kPanelBytes>(own_dp);
      publish_shared();
      warpgroup_barrier(group);
    }
    begin_products(acc);
    multiply(acc[0], mix, S, square);
    multiply(acc[1], back, dP, square);
    finish_products(acc);
    ring.release(at);
    const int row = square * 64 + own, width = min(64, X - strips.column(item));
    const std::int64_t offset = strips.at(item) + static_cast<std::int64_t>(row) * X;
    Bf16 *const P = p.summaries + offset, *const dS = p.mixed + offset;
    write_panel_row<0>(acc[0], 1.0f, !kept && row < p.M, P, width);
    write_panel_row<1>(acc[0], 1.0f, !kept && row + 8 < p.M, P + std::int64_t{8} * X, width);
    write_panel_row<0>(acc[1], 1.0f, row < p.M, dS, width);
    write_panel_row<1>(acc[1], 1.0f, row + 8 < p.M, dS + std::int64_t{8} * X, width);
  }
  if constexpr (!kMixGradient) return;
  const int tiles = (p.M + rows - 1) / rows;
  const auto write = [&](const Accumulator& sum, int i, int b) {
    if (i >= tiles || b >= tiles) return;
    float* const to =
        g.parts +
        (((static_cast<std::int64_t>(matrix) * gridDim.x + blockIdx.x) * tiles + i) * tiles + b) * rows * rows;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int y = own + c / 2 * 8, x = j * 8 + lane % 4 * 2 + c % 2;
        if (y < rows && x < rows) to[y * rows + x] = sum[j][c];
      }
    }
  };
  if (square == 0) {
    write(d_mix[0], 0, 0), write(d_mix[1], 1, 1);
  } else {
    write(d_mix[0], 1, 0);
  }
}

}  // namespace mhla::sm90
