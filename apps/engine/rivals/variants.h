// One rival is several ways to write the same operator; the fastest is reported. A variant is a function from the
// inputs in the caller's layout [B, N, H, D] to the output [B, N, H, E].
#pragma once

#include <torch/version.h>

#include <functional>
#include <string>
#include <vector>

#include "apps/engine/rivals/request.h"
#include "mhla/modules/torch.h"

namespace mhla::rivals {

using apps::RivalRequest;

struct Inputs {
  at::Tensor q, k, v;  // [B, N, H, D], [B, N, Hkv, D], [B, N, Hkv, E]
  at::Tensor mix;      // [L, L]
};

struct Variant {
  std::string name;
  std::function<at::Tensor(const Inputs&)> forward;
};

// Throw std::runtime_error with a reason when the rival cannot take the problem.
std::vector<Variant> plain_variants(const RivalRequest& request);
std::vector<Variant> linear_variants(const RivalRequest& request);
std::vector<Variant> softmax_variants(const RivalRequest& request);

// relu(x) + 1e-6, the feature map of the timed operator.
at::Tensor features(const at::Tensor& x);

// Query heads h read kv head h / group.
at::Tensor repeat_heads(const at::Tensor& x, int64_t heads);

// [B, N, H, D] to [B, H, M, C, D] and back: blocks of the layout, all of one size. A ragged last block of a line is
// filled up with zeros (after the feature map, so that they add nothing).
struct Blocks {
  explicit Blocks(const RivalRequest& request);
  [[nodiscard]] at::Tensor split(const at::Tensor& x) const;    // [B, N, H, D] -> [B, H, M, C, D], contiguous
  [[nodiscard]] at::Tensor merge(const at::Tensor& x) const;    // [B, H, M, C, E] -> [B, N, H, E], contiguous
  [[nodiscard]] at::Tensor gather(const at::Tensor& x) const;   // [B, N, H, D] -> [B, M, C, H, D], a view or a copy
  [[nodiscard]] at::Tensor scatter(const at::Tensor& x) const;  // [B, M, C, H, E] -> [B, N, H, E]
  int64_t M, C, N, padded;
  int64_t count[3], size[3];  // blocks per axis, tokens of a block per axis
};

}  // namespace mhla::rivals
