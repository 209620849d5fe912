// out = x weight^T + bias, row by row: every output is one sum over K in an order that depends on K and the instruction
// set alone. So a row has the same bits whatever other rows, outputs and threads there are, which no BLAS promises; a
// model whose linear layers go through here is as split-invariant as the operator.
#pragma once

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

// In host memory, all f32 or all bf16, last stride 1. Sums are f32.
struct LinearParams {
  ConstView x;           // [N, K]
  ConstView weight;      // [O, K]
  ConstView maybe_bias;  // [O]
};

// out [N, O], of the same dtype, last stride 1. Candidates: "simd", and by name "ref", the definition in f64.
void linear_forward(const LinearParams& params, const View& out, const RunOptions& run = {});

}  // namespace mhla
