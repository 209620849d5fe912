// The sum of many rows, which is the gradient of a bias: sum[c] = sum over n of x[n, c].
// x [N, C] f32, bf16 or f16, contiguous, on a GPU; sums are f32. Rows are cut into parts by their number alone and
// added in a fixed order: the same bits every time.
#pragma once

#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

std::string row_sum_fit(const ConstView& x);         // why the kernel does not take this, or ""
std::int64_t row_sum_workspace(const ConstView& x);  // bytes of run.workspace
void row_sum(const ConstView& x, const View& sum, const RunOptions& run = {});

// Behind a linear layer with a tanh-GELU, out = gelu(pre): dpre = dout gelu'(pre), and the sum of its rows in f32,
// which is the gradient of the layer's bias, in the same pass. dout, pre and dpre [N, C] have one dtype and what
// row_sum wants of x; the workspace is the same.
void gelu_row_sum(const ConstView& dout, const ConstView& pre, const View& dpre, const View& sum,
                  const RunOptions& run = {});

}  // namespace mhla
