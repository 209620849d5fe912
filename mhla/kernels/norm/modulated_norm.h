// What stands between two branches of a diffusion transformer, in one pass (README.md): the branch before joins the
// residual stream through its gate, and the norm before the next branch is scaled and shifted,
//   s = x + gate branch
//   y = (s - mean(s)) / sqrt(variance(s) + eps) (1 + scale) + shift
// gate, scale and shift are rows of a sample and hold for all its tokens. Sums are f32. The stream may be f32 while the
// branch and y are bf16 or f16, as autocast wants it.
#pragma once

#include <cstdint>
#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

struct ModulatedNormParams {
  ConstView x;             // [B, N, X], contiguous; backward: s, what the forward pass wrote
  ConstView maybe_branch;  // [B, N, X], contiguous
  ConstView maybe_gate;    // [B, X], columns next to each other; with the branch
  ConstView scale, shift;  // [B, X] like the gate; backward needs no shift
  double eps = 1e-6;
};

struct ModulatedNormGrads {
  ConstView dout;        // [B, N, X], of y
  ConstView maybe_dsum;  // [B, N, X], of s, dtype of x
  View dx;               // [B, N, X], dtype of x
  View maybe_dbranch;    // [B, N, X], dtype of the branch
  View dmodulation;      // [B, 3, X], f32: of shift, scale and gate (unwritten without a branch)
};

// Why the kernels do not take this problem, or "": f32, bf16 and f16; on a GPU up to 5,120 columns, a multiple of 4.
std::string modulated_norm_fit(const ModulatedNormParams& params, DType out);

// `sum`: s, dtype of x; not given without a branch, when it is x.
void modulated_norm(const ModulatedNormParams& params, const View& maybe_sum, const View& out,
                    const RunOptions& run = {});
// Bitwise repeatable, and the same for a sample whatever else is in its batch. On a GPU run.workspace holds
// modulated_norm_workspace() bytes.
void modulated_norm_backward(const ModulatedNormParams& params, const ModulatedNormGrads& grads,
                             const RunOptions& run = {});
std::int64_t modulated_norm_workspace(const ModulatedNormParams& params);

}  // namespace mhla
