// The part that a model has in sequences which several processes share (ops/context_parallel.h). One for all its
// layers: whoever gives the model its tokens sets the length of the whole sequence before.
#pragma once

#include <memory>

#include "mhla/modules/torch.h"
#include "mhla/ops/context_parallel.h"

namespace mhla {

struct ContextShare {
  ops::ContextGroup* group = nullptr;  // the caller's
  ops::ContextMethod method = ops::ContextMethod::kAuto;
  std::int64_t tokens = 0;  // of the whole sequence; 0: every process has whole sequences of its own
  torch::Tensor positions;  // [n] of this process's tokens in it

  [[nodiscard]] bool active() const { return group != nullptr && tokens > 0; }
  // This process's tokens of a causal sequence of `whole` tokens in chunks; from now on until end() layers see those.
  ops::TokenRange begin(std::int64_t whole, std::int64_t chunk, const torch::Device& device);
  void end() { tokens = 0; }

 private:
  std::int64_t positions_of_ = 0;  // tokens of the sequence that `positions` were made for
};

// A layer that can take a part of the tokens of a sequence.
class SharesContext {
 public:
  virtual ~SharesContext() = default;
  virtual void share_context(const std::shared_ptr<const ContextShare>& share) = 0;
};

// For all layers of a model. Throws mhla::Error naming an attention that cannot.
void share_context(torch::nn::Module& model, const std::shared_ptr<const ContextShare>& share);

}  // namespace mhla
