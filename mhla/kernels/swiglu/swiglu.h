// What stands between the products of a SwiGLU layer, in one pass: out = silu(gate) up, and
//   dgate = dout up silu'(gate)     dup = dout silu(gate)
// All of one shape and dtype, f32, bf16 or f16, contiguous; arithmetic is f32.
#pragma once

#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

struct SwigluParams {
  ConstView gate, up;
};
struct SwigluGrads {
  ConstView dout;
  View dgate, dup;
};

std::string swiglu_fit(const SwigluParams& params);  // why the kernels do not take this, or ""
void swiglu(const SwigluParams& params, const View& out, const RunOptions& run = {});
void swiglu_backward(const SwigluParams& params, const SwigluGrads& grads, const RunOptions& run = {});

}  // namespace mhla
