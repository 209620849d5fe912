// Norms of rows, with what stands around them in these models (README.md):
//   x^ = x / sqrt(mean(x^2) + eps), or (x - mean) / sqrt(variance + eps) when centered
//   y  = (x^ weight + bias) silu(gate)
// On a GPU what a branch adds to the residual stream may come with it: x is then x + add, which is written, too. Sums
// are f32. x and y may differ in dtype: f32 in and bf16 out is what a residual stream under autocast wants.
#pragma once

#include <cstdint>
#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

struct NormParams {
  ConstView x;           // [rows, X], columns next to each other, rows anywhere
  ConstView weight;      // [X], f32; on a GPU bf16 or f16, too
  ConstView maybe_bias;  // [X], f32
  ConstView maybe_gate;  // [rows, X], dtype of x
  ConstView maybe_add;   // [rows, X], f32, bf16 or f16; on a GPU, without a gate; forward alone
  double eps = 1e-6;
  bool centered = false;
};

struct NormGrads {
  ConstView dout;                   // [rows, X]
  View dx;                          // [rows, X], dtype of x
  View maybe_dweight, maybe_dbias;  // [X], f32
  View maybe_dgate;                 // [rows, X]
  ConstView maybe_dsum;             // [rows, X], dtype of x: of x + add, x being that sum; on a GPU, without a gate
  View maybe_dadd;                  // [rows, X]: dx again in the dtype of add
};

// Why the kernels do not take this problem, or "": f32, bf16 and f16, on a GPU with up to 1,024 columns.
std::string norm_fit(const NormParams& params, DType out);

// `maybe_sum`: [rows, X], dtype of x, with add.
void norm(const NormParams& params, const View& out, const RunOptions& run = {}, const View& maybe_sum = {});
// Bitwise repeatable. On a GPU run.workspace holds norm_workspace() bytes.
void norm_backward(const NormParams& params, const NormGrads& grads, const RunOptions& run = {});
std::int64_t norm_workspace(const NormParams& params);

}  // namespace mhla
