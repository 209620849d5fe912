// A checked call as the kernels take it.
#pragma once

#include <algorithm>

#include "mhla/core/executor.h"
#include "mhla/kernels/norm/norm.h"

namespace mhla {

struct NormRows {  // of x, the gate, y and their gradients
  void* data = nullptr;
  std::int64_t stride = 0;
  DType dtype = DType::kF32;
  bool pieces = false;  // four columns at a time lie aligned
};

struct NormJob {
  NormRows x, gate, y, dx, dgate;  // y: dout in the backward pass
  NormRows add, sum, dadd;         // sum: dsum in the backward pass
  NormRows weight;                 // one row; f32 on the CPU
  const float* bias = nullptr;
  float *dweight = nullptr, *dbias = nullptr;
  float* parts = nullptr;  // [norm_parts(rows)][dweight, dbias][X]
  std::int64_t rows = 0;
  int X = 0;
  float eps = 0;
  bool centered = false;
  void* stream = nullptr;
};

inline constexpr int kNormMaxColumns = 1024;  // of a warp's registers
inline constexpr int kNormWarps = 8;          // of a block of threads

// Sums over rows come in parts, by the number of rows alone, so that they have the same bits everywhere.
constexpr std::int64_t norm_parts(std::int64_t rows) {
  const std::int64_t blocks = (rows + kNormWarps - 1) / kNormWarps;
  return blocks < 512 ? blocks : 512;
}

void norm_cuda(const NormJob& job);
void norm_backward_cuda(const NormJob& job);
void norm_simd(const NormJob& job, Executor& executor);
void norm_backward_simd(const NormJob& job, Executor& executor);

}  // namespace mhla
