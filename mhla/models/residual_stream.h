// The residual stream between two branches of a diffusion transformer: what the last branch adds waits for the norm
// that follows, which reads both in one pass (ops::modulated_norm).
#pragma once

#include <tuple>

#include "mhla/modules/torch.h"
#include "mhla/ops/ops.h"

namespace mhla {

struct ResidualStream {
  torch::Tensor x;             // [B, N, dim]
  torch::Tensor branch, gate;  // [B, N, dim] and [B, 1, dim], or undefined

  [[nodiscard]] torch::Tensor settled() const {
    return branch.defined() ? torch::addcmul(x, gate, branch.to(x.scalar_type())) : x;
  }
  // The norm before the next branch, scaled and shifted by rows [B, 1, dim], in `dtype` or that of the stream. The
  // stream is settled afterwards.
  torch::Tensor norm(const torch::Tensor& shift, const torch::Tensor& scale, double eps,
                     std::optional<torch::ScalarType> dtype = {}) {
    torch::Tensor y;
    std::tie(x, y) = ops::modulated_norm({x, branch, gate, scale, shift}, eps, dtype);
    branch = gate = torch::Tensor();
    return y;
  }
};

}  // namespace mhla
