// What a candidate of linear.h gets: checked, sizes above 0. Private to this folder.
#pragma once

#include "mhla/kernels/linear/linear.h"

namespace mhla {

template <class T>  // float or bf16
struct LinearProblem {
  std::int64_t N = 0, K = 0, O = 0;
  const T *x = nullptr, *weight = nullptr, *maybe_bias = nullptr;
  T* out = nullptr;
  std::int64_t x_stride = 0, weight_stride = 0, out_stride = 0;  // of a row
};

void linear_simd(const LinearProblem<float>& problem, Executor& executor);
void linear_simd(const LinearProblem<bf16>& problem, Executor& executor);

}  // namespace mhla
