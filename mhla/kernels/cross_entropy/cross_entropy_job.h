// A checked call as the kernels take it.
#pragma once

#include "mhla/core/executor.h"
#include "mhla/kernels/cross_entropy/cross_entropy.h"

namespace mhla {

struct CrossEntropyJob {
  void* logits = nullptr;
  const std::int64_t* targets = nullptr;
  float* losses = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0, vocab = 0, ignored = 0;
  bool gradient = false;
  bool aligned = false;  // every row to 16 bytes
  void* stream = nullptr;
};

void cross_entropy_cuda(const CrossEntropyJob& job);
void cross_entropy_simd(const CrossEntropyJob& job, Executor& executor);

}  // namespace mhla
