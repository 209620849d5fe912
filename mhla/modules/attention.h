// One interface for every attention: tokens [B, N, C] in, tokens [B, N, C] out. A model holds an AnyAttention and never
// asks which.
#pragma once

#include <memory>

#include "mhla/core/error.h"
#include "mhla/modules/attention_state.h"
#include "mhla/modules/torch.h"

namespace mhla {

class Attention : public torch::nn::Module {
 public:
  // `cu_seqlens` [S + 1]: B = 1 holds packed sequences, none sees another. Those that cannot refuse by name.
  virtual torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& cu_seqlens) = 0;
  torch::Tensor forward(const torch::Tensor& x) { return forward(x, {}); }
  // [B, H, N, N]: how much of the value of token s the output of token t has, before norms, gates and convolutions; for
  // looking at it, N x N numbers. Those whose matrix nobody has asked for yet refuse by name.
  virtual torch::Tensor matrix(const torch::Tensor& x) {
    (void)x;
    fail(name(), ": its attention matrix is not available, expected MHLA, linear or softmax attention");
  }
  // A sequence, or several side by side, a few tokens at a time: what forward() gives over all of them. Without
  // gradients. Those that are not causal refuse by name.
  [[nodiscard]] virtual AttentionState begin(std::int64_t batch) const {
    (void)batch;
    fail(name(), ": has no streaming form, expected a causal attention");
  }
  // T more tokens for every sequence of the state. `positions` [B, T]: next_positions(), made once for all layers.
  virtual torch::Tensor stream(const torch::Tensor& x /* [B, T, C] */, AttentionState& state,
                               const torch::Tensor& positions) {
    (void)x, (void)positions;
    (void)begin(static_cast<std::int64_t>(state.positions.size()));
    return {};
  }
  torch::Tensor stream(const torch::Tensor& x, AttentionState& state) {
    return stream(x, state, next_positions(state.positions, x.size(1), x.device()));
  }
  virtual void constrain() {}  // after an optimiser step: what must hold for the weights (MHLA: the range of mix)
};
using AnyAttention = std::shared_ptr<Attention>;

}  // namespace mhla
