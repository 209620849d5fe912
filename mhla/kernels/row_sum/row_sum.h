// The sum of many rows, which is the gradient of a bias: sum[c] = sum over n of x[n, c].
// x [N, C] f32, bf16 or f16, contiguous; sums are f32. Rows are cut into parts by their number alone and added in a
// fixed order: the same bits every time. And GELU after a linear layer, whose gradient comes with such a sum.
#pragma once

#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

std::string row_sum_fit(const ConstView& x);         // why the kernel does not take this, or ""
std::int64_t row_sum_workspace(const ConstView& x);  // bytes of run.workspace, on a GPU
void row_sum(const ConstView& x, const View& sum, const RunOptions& run = {});

// x times the normal distribution function of x, or the approximation with tanh.
enum class Gelu { kErf, kTanh };

// y = gelu(x) in f32, rounded once, on the CPU; on a GPU LibTorch's kernel is as fast as the memory. x and y have one
// dtype and shape and are contiguous.
std::string gelu_fit(const ConstView& x);
void gelu(Gelu kind, const ConstView& x, const View& y, const RunOptions& run = {});

// After a linear layer with a GELU, out = gelu(pre): dpre = dout gelu'(pre), and the sum of its rows in f32, which
// is the gradient of the layer's bias, in the same pass. dout, pre and dpre [N, C] have one dtype and meet what row_sum
// asks of x; the workspace is the same.
void gelu_row_sum(Gelu kind, const ConstView& dout, const ConstView& pre, const View& dpre, const View& sum,
                  const RunOptions& run = {});

}  // namespace mhla
