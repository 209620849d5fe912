// Checked calls as the kernels take them; how rows are cut into parts.
#pragma once

#include <algorithm>

#include "mhla/core/executor.h"
#include "mhla/kernels/row_sum/row_sum.h"

namespace mhla {

struct RowSumJob {
  const void *x = nullptr, *pre = nullptr;  // with pre: x is dout
  void* dpre = nullptr;
  Gelu gelu = Gelu::kTanh;
  float *sum = nullptr, *parts = nullptr;  // parts [row_sum_parts, columns]
  DType dtype = DType::kF32;
  std::int64_t rows = 0, columns = 0;
  bool aligned = false;  // every row of all to 16 bytes
  void* stream = nullptr;
};

struct GeluJob {
  Gelu kind = Gelu::kTanh;
  const void* x = nullptr;
  void* y = nullptr;
  DType dtype = DType::kF32;
  std::int64_t count = 0;
};

// At least 64 rows a part, and two parts for each of the 132 multiprocessors of an H200.
constexpr std::int64_t row_sum_parts(std::int64_t rows) { return std::clamp<std::int64_t>(rows / 64, 1, 264); }

void row_sum_cuda(const RowSumJob& job);
void row_sum_simd(const RowSumJob& job, Executor& executor);
void gelu_simd(const GeluJob& job, Executor& executor);

}  // namespace mhla
