// A checked call as the kernels take it.
#pragma once

#include "mhla/core/executor.h"
#include "mhla/kernels/swiglu/swiglu.h"

namespace mhla {

struct SwigluJob {
  const void *gate = nullptr, *up = nullptr, *dout = nullptr;
  void *out = nullptr, *dgate = nullptr, *dup = nullptr;
  DType dtype = DType::kF32;
  std::int64_t count = 0;
  bool aligned = false;  // to 16 bytes, all of them
  void* stream = nullptr;
};

void swiglu_cuda(const SwigluJob& job);
void swiglu_backward_cuda(const SwigluJob& job);
void swiglu_simd(const SwigluJob& job, Executor& executor);
void swiglu_backward_simd(const SwigluJob& job, Executor& executor);

}  // namespace mhla
