// Losses of tokens from their logits, with the gradient in their place (kernels/cross_entropy); what the kernel does
// not take is left to LibTorch's operators, in f32.
#include "mhla/core/error.h"
#include "mhla/kernels/cross_entropy/cross_entropy.h"
#include "mhla/ops/attention_op.h"

namespace mhla::ops {
namespace {

constexpr const char* kCrossEntropyEntry = "cross_entropy_";

at::Tensor by_operators(const at::Tensor& logits, const at::Tensor& targets, std::int64_t ignored, bool gradient) {
  const bool wide = logits.scalar_type() == at::kDouble || logits.scalar_type() == at::kFloat;
  const at::Tensor x = wide ? logits : logits.to(at::kFloat);
  const at::Tensor unknown = targets == ignored, target = targets.masked_fill(unknown, 0).unsqueeze(-1);
  const at::Tensor total = x.logsumexp(-1, /*keepdim=*/true);
  const at::Tensor losses = (total - x.gather(-1, target)).squeeze(-1).masked_fill(unknown, 0.0);
  if (!gradient) return losses;
  x.sub_(total).exp_().scatter_add_(-1, target, at::full_like(total, -1.0)).masked_fill_(unknown.unsqueeze(-1), 0.0);
  if (!wide) logits.copy_(x);
  return losses;
}

}  // namespace

at::Tensor cross_entropy_(const at::Tensor& logits, const at::Tensor& targets, std::int64_t ignored, bool gradient) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (logits.dim() != 2 || targets.dim() != 1 || targets.size(0) != logits.size(0) ||
      targets.scalar_type() != at::kLong || targets.device() != logits.device())
    fail(kCrossEntropyEntry, ": logits has shape ", c10::str(logits.sizes()), ", targets ", c10::str(targets.sizes()),
         " of ", c10::str(targets.scalar_type()), ", expected [N, V] and [N] of int64 on one device");
  CrossEntropyParams params;
  params.ignored = ignored, params.gradient = gradient;
  const bool fits = logits.is_contiguous() && logits.size(1) > 0 &&
                    (params.logits = output_view(logits, kCrossEntropyEntry, "logits"), true) &&
                    cross_entropy_fit(params).empty();
  if (!fits) return by_operators(logits, targets, ignored, gradient);
  const at::Tensor own = targets.contiguous(), losses = at::empty(targets.sizes(), logits.options().dtype(at::kFloat));
  params.targets = view_of(own, kCrossEntropyEntry, "targets");
  RunOptions run;
  run.stream = current_stream(logits);
  cross_entropy(params, output_view(losses, kCrossEntropyEntry, "losses"), run);
  return losses;
}

}  // namespace mhla::ops
