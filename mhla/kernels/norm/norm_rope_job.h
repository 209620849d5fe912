// A checked call as the kernel of norm_rope_cuda.cu takes it.
#pragma once

#include "mhla/kernels/norm/modulated_norm_job.h"
#include "mhla/kernels/norm/norm_rope.h"

namespace mhla {

struct NormRopeJob {
  ModulatedRows x, y, weight;                  // the weight is one row
  const float *cos = nullptr, *sin = nullptr;  // [tokens, head / 2]; null: only the norm
  std::int64_t rows = 0, tokens = 1;
  int X = 0, head = 4;
  FeatureMap map = FeatureMap::kIdentity;
  bool silu = false;
  float eps = 0;
  void* stream = nullptr;
};

inline constexpr int kNormRopeColumns = 5120;

void norm_rope_cuda(const NormRopeJob& job);

}  // namespace mhla
