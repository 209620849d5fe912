// Phase 2 in strips of columns, any number of blocks (sm90_mix_panels.cuh is faster where it fits). Which strips:
// mix_plan().
#pragma once

#include "mhla/kernels/common/cuda/sm80_phases.cuh"

namespace mhla::sm80 {

__global__ void pack_mix_kernel(Arguments p, int tiles, bool back) {
  after_previous();
  clear_taken(p);
  p.packed_mix[(static_cast<std::int64_t>(blockIdx.y) * tiles * tiles + blockIdx.x) * 32 + threadIdx.x] =
      mix_fragment<true>(p, blockIdx.y, blockIdx.x / tiles, blockIdx.x % tiles, threadIdx.x, back);
}

// Phase 2: S~_i = sum_b mix[i,b] S_b for kStrip of the D E + D values of a block, or back in place, dS_b = sum_i
// mix[i,b] dS~_i. All M rows of the strip go to shared memory first; a warp makes kPer * 16 rows of S~ at a time. Its
// fragments of mix come through shared memory too, kMixAhead ahead: every lane reads what it copied itself.
template <int kPer, bool kCausal, int kStrip>
__global__ void __launch_bounds__(256, kPer == 1 ? 3 : 2) mix_kernel(Arguments p, int X, int strips, bool back) {
  after_previous();
  constexpr int kStripPitch = strip_pitch(kStrip), kMixAhead = mix_ahead(kStrip);
  extern __shared__ __align__(16) char shared[];  // [M rounded up][kStripPitch], fragments [warps][kMixAhead][kPer]
  const int unit = blockIdx.x / strips, x0 = blockIdx.x % strips * kStrip;
  const Unit u(p, p.first_unit + unit);
  const int tiles = (p.M + 15) / 16, lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const Bf16* from = (back ? p.mixed : p.summaries) + static_cast<std::int64_t>(unit) * p.M * X + x0;
  Bf16* to = p.mixed + static_cast<std::int64_t>(unit) * p.M * X + x0;
  for (int at = threadIdx.x; at < tiles * 16 * (kStrip / 8); at += blockDim.x) {
    const int b = at / (kStrip / 8), c = at % (kStrip / 8);
    const bool valid = b < p.M && x0 + c * 8 < X;
    copy16(shared_address(shared + b * kStripPitch + c * 16), valid ? from + std::int64_t{b} * X + c * 8 : from, valid);
  }
  copy_commit();
  const uint4* mix = p.packed_mix + (p.mix_head ? u.head * std::int64_t{tiles} * tiles * 32 : 0) + lane;
  char* own = shared + tiles * 16 * kStripPitch + warp * kMixAhead * kPer * 512 + lane * 16;
  const auto fetch = [&](int i, int b) {
    if (b < tiles && i < tiles) {
      const std::uint32_t slot = shared_address(own + b % kMixAhead * kPer * 512);
#pragma unroll
      for (int k = 0; k < kPer; ++k) copy16(slot + k * 512, mix + (min(i + k, tiles - 1) * tiles + b) * 32, true);
    }
    copy_commit();
  };
  const bool once = tiles <= kPer * warps;
  for (int i = warp * kPer; i < (once ? warp * kPer + 1 : tiles); i += warps * kPer) {
    const int start = kCausal && back ? min(i, tiles) : 0;
    for (int b = start; b < start + kMixAhead - 1; ++b) fetch(i, b);
    if (i < warps * kPer) {  // the strip came before the fragments
      copy_wait<kMixAhead - 1>();
      __syncthreads();
    }
    float acc[kPer][kStrip / 8][4] = {};
    const std::uint32_t strip = shared_address(shared) + (lane % 16) * kStripPitch + lane / 16 * 16;
    const int last = i >= tiles ? 0 : kCausal && !back ? min(tiles, i + kPer) : tiles;
    for (int b = start; b < last; ++b) {
      fetch(i, b + kMixAhead - 1);
      copy_wait<kMixAhead - 1>();
      std::uint32_t a[kPer][4];
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        const uint4 m = *reinterpret_cast<const uint4*>(own + (b % kMixAhead * kPer + k) * 512);
        a[k][0] = m.x, a[k][1] = m.y, a[k][2] = m.z, a[k][3] = m.w;
      }
      if (kCausal && b >= i && b < i + kPer) {  // not all of these rows are used
        const char* rows = shared + b * 16 * kStripPitch;
#pragma unroll
        for (int k = 0; k < kPer; ++k) {
          if (b == i + k) {
            multiply_used<kStrip / 8>(acc[k], a[k], rows, kStripPitch, kStrip,
                                      [&](int t, int s) { return back ? s > t : s < t; });
          } else if ((b < i + k) != back) {
            multiply_rows<kStrip / 8>(acc[k], a[k], shared_address(rows) + lane % 16 * kStripPitch);
          }
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < kStrip / 8; j += 2) {
        std::uint32_t two[4];
        load_matrices_transposed(two, strip + b * 16 * kStripPitch + j * 16);
#pragma unroll
        for (int k = 0; k < kPer; ++k) {
          multiply_add(acc[k][j], a[k], two[0], two[1]);
          multiply_add(acc[k][j + 1], a[k], two[2], two[3]);
        }
      }
    }
    copy_wait<0>();
    if (once) {  // nobody reads the strip any more: through it, whole lines are written
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        if (i + k < tiles) {
          store_tile<kStrip / 8>(acc[k], shared_address(shared) + ((i + k) * 16 + lane % 16) * kStripPitch);
        }
      }
      __syncwarp();
      for (int at = lane; at < kPer * 16 * (kStrip / 8); at += 32) {
        const int row = i * 16 + at / (kStrip / 8), c = at % (kStrip / 8);
        if (row < p.M && x0 + c * 8 < X) {
          *reinterpret_cast<uint4*>(to + std::int64_t{row} * X + c * 8) =
              *reinterpret_cast<const uint4*>(shared + row * kStripPitch + c * 16);
        }
      }
      break;
    }
#pragma unroll
    for (int half = 0; half < 2 * kPer; ++half) {
      const int row = i * 16 + half * 8 + lane / 4;
#pragma unroll
      for (int j = 0; j < kStrip / 8; ++j) {
        const float* c = &acc[half / 2][j][half % 2 * 2];
        if (row < p.M && x0 + j * 8 < X) {
          *reinterpret_cast<std::uint32_t*>(to + std::int64_t{row} * X + j * 8 + lane % 4 * 2) = pack_bf16(c[0], c[1]);
        }
      }
    }
  }
}

inline void launch_mix_strips(const Arguments& a, bool back, cudaStream_t stream) {
  const MixPlan plan = mix_plan(a.M, a.most_shared);
  const int X = a.D * a.E + a.D, strips = (X + plan.strip - 1) / plan.strip;
  const auto mix = plan.strip == 32 ? a.causal ? mix_kernel<2, true, 32> : mix_kernel<2, false, 32>
                   : plan.per == 1 ? a.causal ? mix_kernel<1, true, 64> : mix_kernel<1, false, 64>
                   : a.causal ? mix_kernel<2, true, 64>
                                    : mix_kernel<2, false, 64>;
  launch_next("mix_kernel", mix, a.units * strips, plan.warps * 32, plan.bytes, stream, a, X, strips, back);
}

}  // namespace mhla::sm80
