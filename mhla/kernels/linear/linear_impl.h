// What a candidate of linear.h gets: checked, sizes above 0. Private to this folder.
#pragma once

#include "mhla/kernels/linear/linear.h"

namespace mhla {

struct LinearProblem {
  std::int64_t N = 0, K = 0, O = 0;
  const float *x = nullptr, *weight = nullptr, *maybe_bias = nullptr;
  float* out = nullptr;
  std::int64_t x_stride = 0, weight_stride = 0, out_stride = 0;  // of a row
};

void linear_simd(const LinearProblem& problem, Executor& executor);

}  // namespace mhla
