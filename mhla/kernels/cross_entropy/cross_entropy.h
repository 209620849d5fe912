// The loss of every token from its logits, and the gradient in their place, in one pass over a row:
//   loss_n = logsumexp(x_n) - x_n[t_n]        dx_n = softmax(x_n) - onehot(t_n)
// Logits [N, V] f32, bf16 or f16, contiguous; arithmetic is f32.
#pragma once

#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

struct CrossEntropyParams {
  View logits;                  // [N, V]  become the gradient where one is asked for
  ConstView targets;            // [N]     i64
  std::int64_t ignored = -100;  // a target of tokens without loss and gradient; others outside of 0 to V - 1 give NaN
  bool gradient = false;
};

std::string cross_entropy_fit(const CrossEntropyParams& params);  // why the kernel does not take this, or ""
void cross_entropy(const CrossEntropyParams& params, const View& losses, const RunOptions& run = {});  // [N] f32

}  // namespace mhla
