// A checked call as the kernels of swiglu_cuda.cu take it.
#pragma once

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

}  // namespace mhla
