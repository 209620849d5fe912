// Products over pairs of tokens: 16 rows in fragments with 16 rows in shared memory, and the 16 x 16 result
// as the left side of the next product.
#pragma once

#include "mhla/kernels/common/cuda/sm80_tiles.cuh"

namespace mhla::sm80 {

// phi of fragments by load_rows(); columns past D stay 0.
template <class S>
__device__ inline void map_fragments(const Arguments& p, std::uint32_t (&a)[S::kRows][4]) {
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= S::D(p)) break;
    feature_fragment(S::map(p), a[step]);
    if (step * 16 + 8 >= S::D(p)) a[step][2] = a[step][3] = 0;
  }
}

// c[r] += a[r] y^T, the products of R x 16 rows in fragments with 16 rows of X values in shared memory.
template <class S, int R>
__device__ inline void multiply_pairs(float (&c)[R][2][4], const std::uint32_t (&a)[R][S::kRows][4], const char* y,
                                      int X) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t row = shared_address(y) + (lane % 8 + lane / 16 * 8) * S::kPitch;
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= X) break;
    std::uint32_t b[4];
    load_matrices(b, row + step * 32 + lane / 8 % 2 * second_half(step, X));
    if (step * 16 + 8 >= X) b[1] = b[3] = 0;  // what lies there may be NaN
#pragma unroll
    for (int r = 0; r < R; ++r) {
      multiply_add(c[r][0], a[r][step], b[0], b[1]);
      multiply_add(c[r][1], a[r][step], b[2], b[3]);
    }
  }
}

// acc[r] += a[r] y over 16 rows of y in shared memory, a by pair_fragment().
template <class S, int R>
__device__ inline void multiply_values(float (&acc)[R][S::kColumns][4], const std::uint32_t (&a)[R][4], const char* y) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t row = shared_address(y) + lane % 16 * S::kPitch, right = lane / 16 * 16;
#pragma unroll
  for (int j = 0; j + 1 < S::kColumns; j += 2) {
    std::uint32_t two[4];
    load_matrices_transposed(two, row + j * 16 + right);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      multiply_add(acc[r][j], a[r], two[0], two[1]);
      multiply_add(acc[r][j + 1], a[r], two[2], two[3]);
    }
  }
  if constexpr (S::kColumns % 2 == 1) {
    std::uint32_t one[2];
    load_two_transposed(one, row + (S::kColumns - 1) * 16);
#pragma unroll
    for (int r = 0; r < R; ++r) multiply_add(acc[r][S::kColumns - 1], a[r], one[0], one[1]);
  }
}

// A tile of 16 x 16 products in bf16, as the left side of the next one.
__device__ inline void pair_fragment(const float (&c)[2][4], std::uint32_t (&a)[4]) {
  a[0] = pack_bf16(c[0][0], c[0][1]), a[1] = pack_bf16(c[0][2], c[0][3]);
  a[2] = pack_bf16(c[1][0], c[1][1]), a[3] = pack_bf16(c[1][2], c[1][3]);
}

// f(tile, i, column) for the eight values c[tile][i] of this lane: columns of the other side, 0 to 15.
template <class F>
__device__ inline void each_pair(const F& f) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f(tile, i, tile * 8 + q * 2 + i % 2);
  }
}

// Whether 16 rows in shared memory hold neither infinity nor NaN. All lanes call.
__device__ inline bool finite_rows(const char* rows, int pitch, int columns) {
  bool finite = true;
  for (int at = threadIdx.x % 32; at < 16 * (columns / 8); at += 32) {
    const int row = at / (columns / 8), c = at - row * (columns / 8);
    const uint4 x = *reinterpret_cast<const uint4*>(rows + row * pitch + c * 16);
    for (const std::uint32_t pair : {x.x, x.y, x.z, x.w}) {
      finite = finite && (pair & 0x7f80u) != 0x7f80u && (pair & 0x7f800000u) != 0x7f800000u;
    }
  }
  return __all_sync(0xffffffffu, finite);
}

// acc += a y over 16 rows of y in shared memory, where a[t][s] is zero unless used(t, s). Zero times NaN is NaN, and a
// token must not see what it does not use: values that are not finite are added one by one where they are used, and the
// product is made without them, so that it has the bits that it has where there are none.
template <int kTiles, class Used>
__device__ inline void multiply_used(float (&acc)[kTiles][4], const std::uint32_t (&a)[4], const char* rows, int pitch,
                                     int columns, const Used& used) {
  const int lane = threadIdx.x % 32;
  if (finite_rows(rows, pitch, columns)) {
    multiply_rows<kTiles>(acc, a, shared_address(rows) + lane % 16 * pitch);
    return;
  }
#pragma unroll 1
  for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // a[i]: row lane / 4 + i % 2 * 8, columns i / 2 * 8 + 2 (lane % 4) and the next
      const float2 value = unpack_bf16(__shfl_sync(0xffffffffu, a[i], (lane & ~3) + pair));
#pragma unroll
      for (int next = 0; next < 2; ++next) {
        const int t = lane / 4 + i % 2 * 8, s = i / 2 * 8 + pair * 2 + next;
        if (!used(t, s)) continue;
        const auto* row = reinterpret_cast<const __nv_bfloat162*>(rows + s * pitch) + lane % 4;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          if (j * 8 >= columns) break;
          const float2 y = __bfloat1622float2(row[j * 4]);
          const float x = next ? value.y : value.x;
          if (!isfinite(y.x)) acc[j][i % 2 * 2] = fmaf(x, y.x, acc[j][i % 2 * 2]);
          if (!isfinite(y.y)) acc[j][i % 2 * 2 + 1] = fmaf(x, y.y, acc[j][i % 2 * 2 + 1]);
        }
      }
    }
  }
  multiply_rows<kTiles, /*kFiniteAlone=*/true>(acc, a, shared_address(rows) + lane % 16 * pitch);
}

// The same where only `ragged` products have pairs that are not used.
template <int kTiles, class Used>
__device__ inline void multiply_used_or_all(bool ragged, float (&acc)[kTiles][4], const std::uint32_t (&a)[4],
                                            const char* rows, int pitch, int columns, const Used& used) {
  if (ragged) {
    multiply_used<kTiles>(acc, a, rows, pitch, columns, used);
  } else {
    multiply_rows<kTiles>(acc, a, shared_address(rows) + threadIdx.x % 16 * pitch);
  }
}

}  // namespace mhla::sm80
