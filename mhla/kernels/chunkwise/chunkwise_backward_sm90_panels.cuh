// dP of the causal form on warpgroups, for heads whose tiles fill panels. One warpgroup copies queries, gradients of
// outputs and weights (none: w = scale, c = 0), the other one multiplies, as in common/cuda/sm90_summaries.cuh.
#pragma once

#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

template <class S>
struct PrefixGradientTiles {
  static constexpr int kPanels = S::kRows / 4, kStages = kPanels == 1 ? 6 : 3, kThreads = 2 * kGroupThreads;
  static constexpr int kTile = kPanels * kPanelBytes, kStage = 2 * kTile;  // of q or dout; of both
  static constexpr int kWeightsAt = kStages * kStage, kRingAt = kWeightsAt + kStages * 64 * 8;
  static constexpr int kBytes = kPanelAlign + kRingAt + Ring<kStages>::kBytes;
  static constexpr int kBlocks = 2;  // of threads on a multiprocessor
  static constexpr bool kMoveRegisters = kPanels == 2;
  static_assert(kBytes <= kMaxSharedBytes && kBlocks * (kBytes + 1024) <= kAllSharedBytes);
};

// dP_i = sum_t (w q~_t)^T [dout_t c_t], in p.mixed.
template <class S>
__global__ void __launch_bounds__(PrefixGradientTiles<S>::kThreads, PrefixGradientTiles<S>::kBlocks)
    panel_prefix_gradient_kernel(Arguments p, Gradients g) {
  using T = PrefixGradientTiles<S>;
  extern __shared__ char unaligned[];  // [kStages] q, dout; [kStages] w and c; ring
  char* const shared = aligned_panels(unaligned);
  const std::uint32_t base = shared_address(shared);
  const Ring<T::kStages> ring{base + T::kRingAt};
  const int items = p.units * p.M, group = warpgroup_index(), D = S::D(p), E = S::E(p);
  if (threadIdx.x == 0) ring.init(4);
  publish_shared();
  __syncthreads();
  after_previous();
  RingPlace<T::kStages> at;
  if (group == 0) {
    if constexpr (T::kMoveRegisters) keep_registers<40>();
    TileMover mover;
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
      const Item item(p, i);
      const int size = static_cast<int>(item.block.size);
      for (int h = 0; h < p.group; ++h) {
        const int head = item.u.head * p.group + h, t = static_cast<int>(threadIdx.x);
        const Bf16 *q = p.q.at(item.u.batch, head), *dout = g.dout.at(item.u.batch, head) + item.u.part * E;
        const float2* weights =
            g.weights + (static_cast<std::int64_t>(item.u.batch) * p.Hkv * p.group + head) * p.N + item.block.origin;
        for (int first = 0; first < size; first += 64, at.next()) {
          mover.find(item.block, first);
          ring.wait_empty(at);
          mover.copy<T::kPanels>(q, p.q.token, D, base + at.stage * T::kStage);
          mover.copy<T::kPanels>(dout, g.dout.token, E, base + at.stage * T::kStage + T::kTile);
          if (g.weights != nullptr && t < 64) {
            const bool valid = first + t < size;
            copy8(base + T::kWeightsAt + (at.stage * 64 + t) * 8, valid ? weights + first + t : weights, valid);
          }
          ring.copied(at);
        }
      }
    }
    copy_commit();
    copy_wait<0>();
  } else {
    if constexpr (T::kMoveRegisters) take_registers<216>();
    const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane / 4;
    for (int i = blockIdx.x; i < items; i += gridDim.x) {
      const Item item(p, i);
      const int size = static_cast<int>(item.block.size);
      Accumulator acc[T::kPanels][T::kPanels] = {};  // 64 rows and 64 columns each
      float z[T::kPanels][2] = {};                   // this lane's share of those of its two rows
      for (int tile = 0; tile < (size + 63) / 64 * p.group; ++tile, at.next()) {
        const std::uint32_t stage = base + at.stage * T::kStage;
        const std::uint64_t dout = panel_descriptor(stage + T::kTile);
        const auto* weights = reinterpret_cast<const float4*>(shared + T::kWeightsAt + at.stage * 64 * 8);
        ring.wait_full(at);
        publish_shared();  // copies were ordinary writes
        std::uint32_t a[T::kPanels][4][4];
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) {
          load_panel_columns(a[rows], stage + rows * kPanelBytes);
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            feature_fragment(S::map(p), a[rows][step]);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
              const float4 wc = g.weights == nullptr ? float4{p.scale, 0.0f, p.scale, 0.0f}
                                                     : weights[step * 8 + side * 4 + lane % 4];  // of two tokens
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                std::uint32_t& pair = a[rows][step][side * 2 + half];
                const float2 x = unpack_bf16(pair);
                pair = pack_bf16(x.x * wc.x, x.y * wc.z);
                const float2 y = unpack_bf16(pair);
                if (p.normalized) z[rows][half] = fmaf(y.x, wc.y, fmaf(y.y, wc.w, z[rows][half]));
              }
            }
          }
          begin_products(acc[rows]);
        }
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) {
#pragma unroll
          for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int panel = 0; panel < T::kPanels; ++panel) {
              multiply_panel_rows(acc[rows][panel], a[rows][step],
                                  dout + panel * (kPanelBytes / 16) + step * kNextRows);
            }
          }
        }
#pragma unroll
        for (int rows = 0; rows < T::kPanels; ++rows) finish_products(acc[rows]);
        ring.release(at);
      }
      const bool counts = item.u.part == 0;  // the denominator's gradient counts once
      Bf16* to = p.mixed + static_cast<std::int64_t>(i) * (D * E + D);
#pragma unroll
      for (int rows = 0; rows < T::kPanels; ++rows) {
        const int d = rows * 64 + row;
#pragma unroll
        for (int panel = 0; panel < T::kPanels; ++panel) {
          const int column = panel * 64, X = min(64, E - column);
          write_panel_row<0>(acc[rows][panel], 1.0f, d < D, to + d * E + column, X);
          write_panel_row<1>(acc[rows][panel], 1.0f, d + 8 < D, to + (d + 8) * E + column, X);
        }
        const float sums[2] = {quad_sum(z[rows][0]), quad_sum(z[rows][1])};
        if (lane % 4 == 0 && d < D) to[D * E + d] = __float2bfloat16_rn(counts ? sums[0] : 0.0f);
        if (lane % 4 == 0 && d + 8 < D) to[D * E + d + 8] = __float2bfloat16_rn(counts ? sums[1] : 0.0f);
      }
    }
  }
}

}  // namespace mhla::sm90
