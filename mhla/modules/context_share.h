// The part that a model has in sequences which several processes share (ops/context_parallel.h). One for all its
// layers: whoever gives the model its tokens says before how they are cut.
#pragma once

#include <memory>

#include "mhla/modules/torch.h"
#include "mhla/ops/context_parallel.h"

namespace mhla {

struct ContextShare {
  ops::ContextGroup* group = nullptr;  // the caller's
  ops::ContextMethod method = ops::ContextMethod::kAuto;
  std::int64_t tokens = 0;  // of the whole sequence; 0: every process has whole sequences of its own
  ops::TokenRange mine;     // this process's
  torch::Tensor positions;  // [n] of these

  [[nodiscard]] bool active() const { return group != nullptr && tokens > 0; }
  // From now on until end() layers see this process's tokens of a sequence of `whole` tokens.
  const ops::TokenRange& begin(const Layout& layout, std::int64_t whole, const torch::Device& device);
  void end() { tokens = 0; }
  [[nodiscard]] torch::Tensor part_of(const torch::Tensor& x) const;  // [B, N, C] to [B, n, C]
  [[nodiscard]] torch::Tensor whole_of(const torch::Tensor& x);  // and back, for a loss that all compute (all_rows)

 private:
  Layout layout_;
  std::int64_t whole_ = 0;  // tokens of the sequence that the rest was made for
  std::vector<std::int64_t> counts_;
};

// A layer that can take a part of the tokens of a sequence.
class SharesContext {
 public:
  virtual ~SharesContext() = default;
  virtual void share_context(const std::shared_ptr<ContextShare>& share) = 0;
};

// For all layers of a model. Throws mhla::Error naming an attention that cannot.
void share_context(torch::nn::Module& model, const std::shared_ptr<ContextShare>& share);

}  // namespace mhla
