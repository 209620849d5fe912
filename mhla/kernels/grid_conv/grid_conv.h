// A depthwise convolution over a grid of tokens, joined to what stands beside it (README.md):
//   out = base silu(gate) + bias + sum over taps of weight v
// Tokens keep their order, channels last, so that v may be a slice of a projection and nothing is turned round. Sums
// are f32.
#pragma once

#include <cstdint>
#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

struct GridConvParams {
  ConstView v;           // [B, rows columns, C], channels next to each other, tokens evenly apart
  ConstView weight;      // [kernel kernel, C], contiguous f32: channels next to each other here, too
  ConstView maybe_bias;  // [C], contiguous f32
  ConstView maybe_base;  // [B, rows columns, C], contiguous, dtype of v
  ConstView maybe_gate;  // like base, and only with it
  std::int64_t rows = 0, columns = 0, kernel = 3;
};

struct GridConvGrads {
  ConstView dout;                 // [B, N, C], contiguous, dtype of v
  View dv;                        // [B, N, C], contiguous, dtype of v
  View dweight, dbias;            // [kernel kernel, C] and [C], contiguous f32
  View maybe_dbase, maybe_dgate;  // with a gate: [B, N, C], contiguous; without one the gradient of base is dout
};

// Why the kernels do not take this problem, or "". They are of GPUs: kernels of 3 and 5, a multiple of 4 channels.
std::string grid_conv_fit(const GridConvParams& params);

void grid_conv(const GridConvParams& params, const View& out, const RunOptions& run = {});
// Bitwise repeatable. run.workspace holds grid_conv_workspace() bytes.
void grid_conv_backward(const GridConvParams& params, const GridConvGrads& grads, const RunOptions& run = {});
std::int64_t grid_conv_workspace(const GridConvParams& params);

}  // namespace mhla
