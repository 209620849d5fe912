#include "mhla/modules/context_share.h"

#include "mhla/core/error.h"
#include "mhla/modules/attention.h"

namespace mhla {

ops::TokenRange ContextShare::begin(std::int64_t whole, std::int64_t chunk, const torch::Device& device) {
  const ops::TokenRange mine = ops::tokens_of_rank(chunk, whole, group->size(), group->rank());
  if (whole != positions_of_ || positions.device() != device)
    positions = torch::arange(mine.first, mine.first + mine.count, torch::TensorOptions(torch::kLong).device(device));
  tokens = positions_of_ = whole;
  return mine;
}

void share_context(torch::nn::Module& model, const std::shared_ptr<const ContextShare>& share) {
  for (const auto& module : model.modules()) {
    if (auto* const sharing = dynamic_cast<SharesContext*>(module.get()))
      sharing->share_context(share);
    else if (dynamic_cast<Attention*>(module.get()) != nullptr)
      fail(module->name(), ": its sequences cannot be shared between processes, expected causal MHLA");
  }
}

}  // namespace mhla
