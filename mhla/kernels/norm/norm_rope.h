// RMSNorm of rows with what follows it in video models, in one pass (README.md):
//   y = x / sqrt(mean(x^2) + eps) weight      over all columns of a row
//   a table   (a, b) = phi of channels 2j and 2j + 1 of a head     out = (a cos - b sin, a sin + b cos)
//   silu      out = y sigmoid(y)
// The first is what a transformer does to q and k, the second what stands before every convolution of Wan's
// autoencoder. Without either it is the norm, of rows longer than norm() takes. Sums and products are f32, the result
// is rounded once.
#pragma once

#include <cstdint>
#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

struct NormRopeParams {
  ConstView x;                                     // [rows, X], columns next to each other
  ConstView weight;                                // [X], f32, bf16 or f16
  ConstView maybe_cos, maybe_sin;                  // [N, D / 2], f32, contiguous: both or none; row r has line r % N
  std::int64_t head = 0;                           // D, with a table; heads lie next to each other in a row
  FeatureMap feature_map = FeatureMap::kIdentity;  // with a table
  bool silu = false;                               // without a table
  double eps = 1e-6;
};

// Why the kernel does not take this problem, or "". It is of GPUs: up to 5,120 columns, a multiple of 4, as heads are,
// in f32, bf16 or f16. Forward only.
std::string norm_rope_fit(const NormRopeParams& params, DType out);
void norm_rope(const NormRopeParams& params, const View& out /* [rows, X] */, const RunOptions& run = {});

}  // namespace mhla
