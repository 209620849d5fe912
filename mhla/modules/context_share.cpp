#include "mhla/modules/context_share.h"

#include "mhla/core/error.h"
#include "mhla/modules/attention.h"

namespace mhla {
namespace {

bool same(const Layout& a, const Layout& b) {
  return a.rank == b.rank && a.block_size == b.block_size && a.grid == b.grid && a.blocks == b.blocks;
}

}  // namespace

const ops::TokenRange& ContextShare::begin(const Layout& layout, std::int64_t whole, const torch::Device& device) {
  tokens = whole;
  if (whole == whole_ && same(layout, layout_) && positions.device() == device) return mine;
  counts_.clear();
  for (std::int64_t rank = 0; rank < group->size(); ++rank)
    counts_.push_back(ops::tokens_of_rank(layout, whole, group->size(), rank).count);
  mine = ops::tokens_of_rank(layout, whole, group->size(), group->rank());
  positions = torch::arange(mine.first, mine.first + mine.count, torch::TensorOptions(torch::kLong).device(device));
  whole_ = whole, layout_ = layout;
  return mine;
}

torch::Tensor ContextShare::part_of(const torch::Tensor& x) const {
  return x.narrow(1, mine.first, mine.count).contiguous();
}

torch::Tensor ContextShare::whole_of(const torch::Tensor& x) { return ops::all_rows(x, counts_, *group); }

void share_context(torch::nn::Module& model, const std::shared_ptr<ContextShare>& share) {
  for (const auto& module : model.modules()) {
    if (auto* const sharing = dynamic_cast<SharesContext*>(module.get()))
      sharing->share_context(share);
    else if (dynamic_cast<Attention*>(module.get()) != nullptr)
      fail(module->name(), ": its sequences cannot be shared between processes, expected MHLA");
  }
}

}  // namespace mhla
