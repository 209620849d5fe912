// The first phase inside a block of threads: a tile of S = sum_t a_t b_t^T, and z = sum_t factor_t x_t, over the tokens
// of one block that lie wherever their source says.
#pragma once

#include "mhla/kernels/common/cuda/tokens.cuh"

namespace mhla::cuda {

inline constexpr int kSummaryRows = 64;

// Rows [d, d + kRows) and columns [e, e + 64) of S as [D][E] at `out`.
template <class A, int kRows, class Rows>
__device__ void summary_tile(TileMemory<A, kRows>& memory, const Rows& a_rows, const Rows& b_rows, int size, int d,
                             int e, int D, int E, float* out) {
  auto *const a = memory.operands.a, *const b = memory.operands.b;
  typename A::template Sums<kRows> sums;
  for (int t = 0; t < size; t += kDepth) {
    fill_by_rows<A, kRows>(a, a_rows, t, d);
    fill_by_rows<A, kColumns>(b, b_rows, t, e);
    __syncthreads();
    sums.template add<Filled::kByRows, Filled::kByRows>(a, b, min(kDepth, size - t));
    __syncthreads();
  }
  stage(sums, memory.staged);
  __syncthreads();
  for_staged<float, kRows>(memory.staged, [&](int row, int column, const float(&x)[4]) {
    if (d + row < D) store_piece(out + (d + row) * E, e + column, E, E % 4 == 0, x);
  });
}

// z, in partial sums of 16 tokens. `memory`: kVectorMemory floats.
inline constexpr int kVectorMemory = kDepth * pitch(kColumns);
template <class Rows>
__device__ void sum_vectors(float* memory, const Rows& rows, int size, const float* maybe_factor, int D, float* out) {
  const int half = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  for (int first = 0; first < D; first += kColumns) {
    float total = 0;
    for (int t = 0; t < size; t += kDepth) {
      fill_by_rows<FullF32, kColumns>(memory, rows, t, first);
      __syncthreads();
      float part = 0;
      for (int k = half * 16; k < half * 16 + 16 && t + k < size; ++k) {
        const float x = memory[k * pitch(kColumns) + column];
        part = maybe_factor ? fmaf(maybe_factor[t + k], x, part) : part + x;
      }
      total += part;
      __syncthreads();
    }
    if (half == 1) memory[column] = total;
    __syncthreads();
    if (half == 0 && first + column < D) out[first + column] = total + memory[column];
    __syncthreads();
  }
}

}  // namespace mhla::cuda
