#include "mhla/train/sharing.h"

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"

namespace mhla::train {

ops::ContextPlan sharing_plan(const TrainOptions& o, SharedKind kind) {
  const int P = o.place.context;
  const Layout& layout = kind.whole.layout;
  const std::int64_t slices = layout.rank == 1 ? BlockMap(layout, kind.whole.tokens).blocks()
                                               : layout.blocks[static_cast<std::size_t>(3 - layout.rank)];
  if (P > slices)
    fail("train: context_parallel is ", P, ", expected at most ", slices, ", the blocks along the first axis of ",
         describe(layout), " with ", kind.whole.tokens, " tokens");
  for (int rank = 0; rank < P; ++rank) {
    const std::int64_t tokens = ops::tokens_of_rank(layout, kind.whole.tokens, P, rank).count;
    if (tokens < kind.halo)
      fail("train: context_parallel is ", P, ", expected fewer: ", kind.halo_of, " reads ", kind.halo,
           " tokens across a cut, and process ", rank, " has ", tokens);
  }
  kind.shape.B = share_of(o).each;
  kind.shape.element = o.precision == "bf16" ? 2 : 4, kind.shape.on_cpu = o.device == "cpu";
  return labelled("train", [&] {
    return ops::plan_context(kind.shape, kind.whole, P, ops::parse_context_method(o.context_method));
  });
}

std::string describe_sharing(const TrainOptions& o, const SharedKind& kind) {
  const ops::ContextPlan plan = sharing_plan(o, kind);
  return str(o.place.context, " processes share every sequence by ", ops::name_of(plan.method), " (", plan.reason,
             "): each receives up to ", plan.bytes, " bytes for every layer and batch");
}

SharedSequences::SharedSequences(torch::nn::Module& model, const TrainOptions& o) {
  if (o.place.context == 1) return;
  group_ = std::make_unique<distributed::TeamContext>(*o.place.maybe_team, o.place.context);
  share_ = std::make_shared<ContextShare>();
  share_->group = group_.get(), share_->method = ops::parse_context_method(o.context_method);
  share_context(model, share_);
}

}  // namespace mhla::train
