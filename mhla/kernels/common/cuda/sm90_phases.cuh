// The phases that the bidirectional and the causal form share on Hopper: summaries of blocks, and their mixing in
// place.
#pragma once

#include <algorithm>
#include <type_traits>

#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/sm90_pairs.cuh"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm90 {

// Waits until the launches before this one on the stream are done and what they wrote can be read.
__device__ inline void after_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// More shared memory than a kernel has unasked.
template <class Kernel>
void allow_shared(Kernel kernel, int bytes, const char* name) {
  if (bytes <= 48 << 10) return;
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), name);
}

template <int>  // a template, so that several files may hold it
__global__ void pack_mix_kernel(Arguments p, int tiles, bool back) {
  after_previous();
  p.fragments[(static_cast<std::int64_t>(blockIdx.y) * tiles * tiles + blockIdx.x) * 32 + threadIdx.x] =
      mix_fragment(p, blockIdx.y, blockIdx.x / tiles, blockIdx.x % tiles, threadIdx.x, back);
}

// A block of a head: what the blocks of threads of phases 1 and 3 take in turn.
struct Item {
  int unit, index;  // unit of this launch, block
  Unit u;
  BlockTokens block;
  __device__ Item(const Arguments& p, int item)
      : unit(item / p.M), index(item % p.M), u(p, p.first_unit + unit), block(p.block(index)) {}
};

// Phase 1: summaries. One warp per 16 rows; tiles of kPhaseTokens tokens, the next ones on their way, also those of the
// next block.
template <class S>
__global__ void __launch_bounds__(S::kRows * 32) summary_kernel(Arguments p) {
  after_previous();
  constexpr int kKeyBytes = kPhaseTokens * S::kPitch, kStage = 2 * kKeyBytes, kStages = phase_stages(S::kTiles);
  extern __shared__ __align__(16) char shared[];  // [kStages][keys, values], S
  const int items = p.units * p.M, row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  int next = blockIdx.x, next_first = 0, next_slot = 0;  // of the next fetch
  Item coming(p, min(next, items - 1));
  const auto fetch = [&] {
    if (next < items) {
      const std::uint32_t stage = shared_address(shared + next_slot * kStage);
      copy_keys<S, kPhaseTokens, S::kRows * 32>(p, coming.u.k(p), coming.u.v(p), coming.block, next_first, stage,
                                                stage + kKeyBytes, threadIdx.x);
      next_first += kPhaseTokens;
      if (next_first >= static_cast<int>(coming.block.size)) {
        next += gridDim.x, next_first = 0;
        if (next < items) coming = Item(p, next);
      }
    }
    next_slot = next_slot + 1 == kStages ? 0 : next_slot + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch();
  int slot = 0;
  for (int at = blockIdx.x; at < items; at += gridDim.x) {
    const int size = static_cast<int>(p.block(at % p.M).size);
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
    // Through shared memory of the warp's own, so that 16-byte stores fill whole lines.
    char* tile = shared + kStages * kStage + row * S::kPitch;
    store_tile<S::kColumns>(summary.acc, shared_address(tile + lane % 16 * S::kPitch));
    __syncwarp();
    Bf16* to = p.summaries + static_cast<std::int64_t>(at) * (D * E + D);
    const int chunks = E / 8, rows = min(16, D - row);
    for (int i = lane; i < rows * chunks; i += 32) {
      const int d = i / chunks, c = i % chunks;
      *reinterpret_cast<uint4*>(to + (row + d) * E + c * 8) =
          *reinterpret_cast<const uint4*>(tile + d * S::kPitch + c * 16);
    }
    summary.each_z(p, row, [&](int d, Bf16 value) { to[D * E + d] = value; });
    __syncwarp();
  }
  copy_wait<0>();
}

// Phase 2: S~_i = sum_b mix[i,b] S_b for kStrip of the D E + D values of a block, or back in place, dS_b = sum_i
// mix[i,b] dS~_i. All M rows of the strip go to shared memory first; a warp makes kPer * 16 rows of S~ at a time. Its
// fragments of mix come through shared memory too, kMixAhead ahead: every lane reads what it copied itself.
inline constexpr int kStrip = 64, kStripPitch = kStrip * 2 + 16, kMixAhead = 6;
constexpr int mix_shared_bytes(int M, int warps, int per) {
  return (M + 15) / 16 * 16 * kStripPitch + warps * kMixAhead * per * 512;
}

template <int kPer, bool kCausal>
__global__ void __launch_bounds__(256, kPer == 1 ? 3 : 2) mix_kernel(Arguments p, int X, int strips, bool back) {
  after_previous();
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
  const uint4* mix = p.fragments + (p.mix_head ? u.head * std::int64_t{tiles} * tiles * 32 : 0) + lane;
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

// A launch that may begin while the one before it on the stream ends: kernels start with after_previous().
template <class... P, class... A>
void launch_next(const char* name, void (*kernel)(P...), dim3 grid, int threads, int bytes, cudaStream_t stream,
                 const A&... arguments) {
  allow_shared(kernel, bytes, name);
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes, config.stream = stream;
  config.attrs = &overlap, config.numAttrs = 1;
  cuda_check(cudaLaunchKernelEx(&config, kernel, P(arguments)...), name);
}

// As many blocks of threads as run at once on the current device, at most `items`.
template <class Kernel>
unsigned blocks_for(Kernel kernel, int threads, int bytes, std::int64_t items) {
  int device = 0, count = 0, resident = 0;
  allow_shared(kernel, bytes, "shared memory");
  cuda_check(cudaGetDevice(&device), "current device");
  cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "multiprocessors");
  cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, bytes), "occupancy");
  return static_cast<unsigned>(std::min<std::int64_t>(items, std::int64_t{count} * std::max(resident, 1)));
}

inline void launch_pack_mix(const Arguments& a, int mix_heads, bool back, cudaStream_t stream) {
  const int tiles = (a.M + 15) / 16;
  launch_next("sm90 pack_mix_kernel", pack_mix_kernel<0>, dim3(tiles * tiles, static_cast<unsigned>(mix_heads)), 32, 0,
              stream, a, tiles, back);
}

// Phase 2 for the units of `a`.
inline void launch_mix(const Arguments& a, bool back, cudaStream_t stream) {
  const int tiles = (a.M + 15) / 16, per = tiles <= 8 ? 1 : 2, warps = std::min((tiles + per - 1) / per, 8);
  const int X = a.D * a.E + a.D, strips = (X + kStrip - 1) / kStrip, bytes = mix_shared_bytes(a.M, warps, per);
  const auto mix = per == 1   ? a.causal ? mix_kernel<1, true> : mix_kernel<1, false>
                     : a.causal ? mix_kernel<2, true>
                              : mix_kernel<2, false>;
  launch_next("sm90 mix_kernel", mix, a.units * strips, warps * 32, bytes, stream, a, X, strips, back);
}

// Phases 1 and 2 for the units of `a`.
template <class S>
void launch_summaries(const Arguments& a, cudaStream_t stream) {
  const int stage_bytes = (phase_stages(S::kTiles) * kPhaseTokens * 2 + S::kRows * 16) * S::kPitch;
  const unsigned blocks = blocks_for(summary_kernel<S>, S::kRows * 32, stage_bytes, std::int64_t{a.units} * a.M);
  launch_next("sm90 summary_kernel", summary_kernel<S>, blocks, S::kRows * 32, stage_bytes, stream, a);
  launch_mix(a, false, stream);
}

template <class T, class View>
Strided<T> strided(const View& x) {
  return {static_cast<T*>(x.data), x.stride[0], x.stride[1], x.stride[2]};
}

// What both forms tell their kernels; parts of the columns, buffers and units are the caller's.
inline Arguments arguments_of(const Problem& p) {
  Arguments a{};
  a.q = strided<const Bf16>(p.q), a.k = strided<const Bf16>(p.k), a.v = strided<const Bf16>(p.v);
  a.out = strided<Bf16>(p.out);
  a.layout = DeviceLayout(p.layout, p.C);
  a.N = p.N;
  a.M = static_cast<int>(p.M), a.D = static_cast<int>(p.D), a.E = static_cast<int>(p.E);
  a.Hkv = static_cast<int>(p.Hkv), a.group = static_cast<int>(p.group());
  a.parts = 1;
  a.causal = p.causal;
  a.map = p.feature_map, a.normalized = p.normalized();
  a.eps = static_cast<float>(p.eps), a.scale = static_cast<float>(p.scale);
  a.mix = data_as<float>(p.mix), a.mix_head = p.Hm > 1 ? p.mix.stride[0] : 0;
  a.mix_row = p.mix.stride[1], a.mix_column = p.mix.stride[2];
  return a;
}

// The tiles of a problem as a type: f(Spec<...>{}). The identity is worth kernels of its own in the causal form, where
// language models rotate what the map gave.
template <bool kCausal, class F>
void with_spec(const Arguments& a, const F& f) {
  const Tiles t = tiles_of(a.D, a.E);
  const bool filled = a.D == exact_size(t) && a.E == exact_size(t);
  const auto pick = [&](auto rows, auto columns) {
    constexpr int kRows = rows, kColumns = columns;
    if (filled && a.map == FeatureMap::kReluEps) return f(Spec<kRows, kColumns, Known::kReluEps>{});
    if constexpr (kCausal && (kRows == 4 || kRows == 8)) {
      if (filled && a.map == FeatureMap::kIdentity) return f(Spec<kRows, kColumns, Known::kIdentity>{});
    }
    f(Spec<kRows, kColumns, Known::kNothing>{});
  };
  static_assert(kTiles[0].rows == 2 && kTiles[1].rows == 4 && kTiles[2].rows == 5 && kTiles[3].rows == 8);
  switch (t.rows) {
    case 2: pick(std::integral_constant<int, 2>{}, std::integral_constant<int, 4>{}); break;
    case 4: pick(std::integral_constant<int, 4>{}, std::integral_constant<int, 8>{}); break;
    case 5: pick(std::integral_constant<int, 5>{}, std::integral_constant<int, 9>{}); break;
    default: pick(std::integral_constant<int, 8>{}, std::integral_constant<int, 16>{}); break;
  }
}

}  // namespace mhla::sm90
