// Summaries and prefixes of the slice kernel: S_i = k~_i^T v_i and P_i = sum_{b<i} mix[i,b] S_b, of 32 columns. Eight
// warps have 16 of the 128 rows each, and mixing stays inside a warp.
//
// Chunks go in groups of eight. Registers hold eight rows X[8] of a warp, in bf16: after chunk r of group G the first
// r + 1 are summaries of this group, the others bases, which are what the groups before contribute to P of the
// chunks of this group:  P_{8G+r+1} = X[r+1] (base) + sum_{j<=r} mix[8G+r+1, 8G+j] X[j].
// Bases of the next group are made by products with mix when a group ends. Group 0 leaves its summaries in shared
// memory; at the end of group 1 both become the bases of rows 16 to 23 (registers) and 24 to 31 (shared memory, in
// place); at the end of group 2 its summaries are added to the latter.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90_slices.cuh"

namespace mhla::sm90 {

using MixedRows = std::uint32_t[kSliceGroup][8];  // [row][j]: columns 4 j of a fragment: rows g, g + 8 of tile j / 2

__device__ inline void store_words(std::uint32_t to, const std::uint32_t* x) {
  set_shared_words(to, x[0], x[1], x[2], x[3]);
}
__device__ inline void load_words(std::uint32_t* x, std::uint32_t from) {
  const uint4 y = shared_words(from);
  x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}

// Bases of the rows after group kGroup into X. Values are taken as columns of a product with mix, whatever they stand
// for: half of a row at a time goes through shared memory, loads before products before stores.
template <int kGroup>
__device__ inline void next_bases(MixedRows& X, std::uint32_t kept, std::uint32_t halves, std::uint32_t mix) {
  using At = SliceMemory;
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, row = lane % 8, matrix = lane / 8;
  const auto pair = [&](int r, int c) {
    const uint2 m = shared_pair(mix + (r * kSliceMixRows + c) * 4);
    return pack_bf16(__uint_as_float(m.x), __uint_as_float(m.y));
  };
  std::uint32_t a[4];
  if constexpr (kGroup == 0) a[0] = pair(8 + g, 2 * q);
  if constexpr (kGroup == 1) {
    a[0] = pair(16 + g, 2 * q), a[1] = pair(24 + g, 2 * q);
    a[2] = pair(16 + g, 8 + 2 * q), a[3] = pair(24 + g, 8 + 2 * q);
  }
  if constexpr (kGroup == 2) a[0] = pair(24 + g, 16 + 2 * q);
  const std::uint32_t own = halves + lane * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (kGroup > 0) {
#pragma unroll
      for (int r = 0; r < 8; ++r) store_words(own + r * At::kHalfRow, &X[r][4 * half]);
    }
    __syncwarp();
    const std::uint32_t in_kept = kept + row * At::kKeptRow + half * 512, in_half = halves + row * At::kHalfRow;
    if constexpr (kGroup == 1) {
      const std::uint32_t at = (matrix % 2 ? in_half : in_kept) + matrix / 2 * 16;
#pragma unroll 1
      for (int step = 0; step < 16; step += 4) {
        std::uint32_t b[4][4];
#pragma unroll
        for (int u = 0; u < 4; ++u) load_matrices_transposed(b[u], at + (step + u) * 32);
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          float c0[4] = {}, c1[4] = {};
          multiply_add(c0, a, b[u][0], b[u][1]);
          multiply_add(c1, a, b[u][2], b[u][3]);
          b[u][0] = pack_bf16(c0[2], c0[3]), b[u][1] = pack_bf16(c0[0], c0[1]);  // rows 24 to 31 stay in `kept`
          b[u][2] = pack_bf16(c1[2], c1[3]), b[u][3] = pack_bf16(c1[0], c1[1]);
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) store_matrices(at + (step + u) * 32, b[u][0], b[u][1], b[u][2], b[u][3]);
      }
    } else {
#pragma unroll 1
      for (int step = 0; step < 8; step += 4) {
        std::uint32_t b[4][4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          load_matrices_transposed(b[u], (kGroup == 0 ? in_kept : in_half) + ((step + u) * 4 + matrix) * 16);
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          std::uint32_t old[4] = {};
          if constexpr (kGroup == 2) load_matrices(old, in_kept + ((step + u) * 4 + matrix) * 16);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float2 known = unpack_bf16(old[k]);
            float c[4] = {known.x, known.y, 0.0f, 0.0f};
            multiply_upper(c, a[0], b[u][k]);
            b[u][k] = pack_bf16(c[0], c[1]);
          }
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          store_matrices(in_half + ((step + u) * 4 + matrix) * 16, b[u][0], b[u][1], b[u][2], b[u][3]);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 8; ++r) load_words(&X[r][4 * half], own + r * At::kHalfRow);
    __syncwarp();
  }
}

// 0x10000 and 0xffff0000, out of shared memory: of constants that it knows the compiler would widen all of X at once
// and keep that over the chunks, which takes more registers than there are.
struct WidenPair {
  std::uint32_t times, keep;
  __device__ explicit WidenPair(const SliceShared& s) {
    const uint2 x = shared_pair(s.base + SliceMemory::kSelectAt);
    times = x.x, keep = x.y;
  }
  [[nodiscard]] __device__ float low(std::uint32_t x) const { return __uint_as_float(x * times); }
  [[nodiscard]] __device__ float high(std::uint32_t x) const { return __uint_as_float(x & keep); }
};

// kLoaded: the barriers after which k and v may be read (SliceBarriers).
template <int kLoaded>
__device__ inline void summary_role(const SliceArguments& p, const SliceShared& s, int warp) {
  using At = SliceMemory;
  const int lane = threadIdx.x % 32, half = warp / 4;
  const std::uint32_t kept = s.base + At::kKeptAt + warp * At::kKept, halves = s.base + At::kHalfAt + warp * At::kHalf;
  const int prefix_row = warp * 16 + lane % 16;
  const std::uint32_t prefix = s.base + At::kPrefixAt, left = prefix + narrow_offset(prefix_row, lane / 16),
                      right = prefix + narrow_offset(prefix_row, 2 + lane / 16);
  MixedRows X;
  SliceTurn turn;
  int side = 1, parities = 3;  // of tile n + 1: its output warpgroup; parities of its place, one bit each
  for (int index = blockIdx.x, k = 0; index < p.items; index += gridDim.x, ++k) {
    const int chunks = SliceItem(p, index).chunks;
    wait_mix(p, s, k);
    const std::uint32_t mix = s.mix(mix_place(p, k));
#pragma unroll 1
    for (int G = 0; G * kSliceGroup < chunks; ++G) {
#pragma unroll
      for (int r = 0; r < kSliceGroup; ++r) {
        const int i = G * kSliceGroup + r;
        if (i < chunks) {
          NarrowSums sums, next;
          float m[8];
          const WidenPair widen(s);
          const std::uint32_t stage = s.stage(turn.stage());
          barrier_wait(s.barrier(kLoaded, turn.slot), turn.parity);
          warpgroup_begin();
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            multiply_transposed_by_narrow(sums, panel_descriptor(stage + half * At::kPanel) + step * kNextRows,
                                          narrow_descriptor(stage + 2 * At::kPanel) + step * kNextNarrowRows, step > 0);
          }
          warpgroup_commit();
          if (r < 7) {  // what is known of the next prefix, while the product runs
            const std::uint32_t line = mix + ((i + 1) * kSliceMixRows + G * kSliceGroup) * 4;
            const uint4 m0 = shared_words(line), m1 = shared_words(line + 16);
            m[0] = __uint_as_float(m0.x), m[1] = __uint_as_float(m0.y), m[2] = __uint_as_float(m0.z);
            m[3] = __uint_as_float(m0.w), m[4] = __uint_as_float(m1.x), m[5] = __uint_as_float(m1.y);
            m[6] = __uint_as_float(m1.z), m[7] = __uint_as_float(m1.w);
#pragma unroll
            for (int x = 0; x < 8; ++x) {
              float &low = next[x / 2][x % 2 * 2], &high = next[x / 2][x % 2 * 2 + 1];
              low = G > 0 ? widen.low(X[(r + 1) % 8][x]) : 0.0f, high = G > 0 ? widen.high(X[(r + 1) % 8][x]) : 0.0f;
#pragma unroll
              for (int j = 0; j < r; ++j) {
                low = fmaf(m[j], widen.low(X[j][x]), low), high = fmaf(m[j], widen.high(X[j][x]), high);
              }
            }
            settle_sums(next);
          }
          warpgroup_wait<0>();
          settle_sums(sums);
          warp_arrive(s.barrier(SliceBarriers::kFree, turn.stage()));
          turn.advance(1);
#pragma unroll
          for (int x = 0; x < 8; ++x) X[r][x] = pack_bf16(sums[x / 2][x % 2 * 2], sums[x / 2][x % 2 * 2 + 1]);
          if (G == 0) {
            store_words(kept + r * At::kKeptRow + lane * 16, &X[r][0]);
            store_words(kept + r * At::kKeptRow + 512 + lane * 16, &X[r][4]);
          }
          if (i + 1 < chunks) {
            std::uint32_t y[8];
            if (r < 7) {
#pragma unroll
              for (int x = 0; x < 8; ++x) {
                y[x] = pack_bf16(fmaf(m[r], widen.low(X[r][x]), next[x / 2][x % 2 * 2]),
                                 fmaf(m[r], widen.high(X[r][x]), next[x / 2][x % 2 * 2 + 1]));
              }
            } else {
              __syncwarp();
              if (G == 0) next_bases<0>(X, kept, halves, mix);
              if (G == 1) next_bases<1>(X, kept, halves, mix);
              if (G == 2) next_bases<2>(X, kept, halves, mix);
#pragma unroll
              for (int x = 0; x < 8; ++x) y[x] = X[0][x];
            }
            barrier_wait(s.barrier(SliceBarriers::kPrefixFree, side), parities >> side & 1);
            parities ^= 1 << side;
            store_matrices(left + side * At::kPrefix, y[0], y[1], y[2], y[3]);
            store_matrices(right + side * At::kPrefix, y[4], y[5], y[6], y[7]);
            publish_shared();
            __syncwarp();
            warp_arrive(s.barrier(SliceBarriers::kPrefix, side));
          }
          side ^= 1;
        }
      }
    }
    leave_mix(p, s, k);
  }
}

}  // namespace mhla::sm90
