#include "mhla/models/lm/head_loss.h"

#include "mhla/core/error.h"
#include "mhla/ops/ops.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

// Bytes of a piece's logits: products want many rows, caches of CPUs are small.
constexpr std::int64_t kDeviceLogits = std::int64_t{256} << 20, kHostLogits = std::int64_t{32} << 20;

struct Pieces {
  torch::Tensor hidden;   // [N, dim]
  torch::Tensor targets;  // [N]
  torch::Tensor weight;   // [vocab, dim], in the dtype of the products
  std::int64_t at_once = 0;
};

void check(const torch::Tensor& hidden, const torch::Tensor& weight, const torch::Tensor& targets) {
  if (hidden.dim() < 2 || weight.dim() != 2 || hidden.size(-1) != weight.size(1) ||
      targets.sizes() != hidden.sizes().slice(0, static_cast<std::size_t>(hidden.dim() - 1)) ||
      targets.scalar_type() != torch::kLong) {
    fail("head_loss: hidden has shape ", c10::str(hidden.sizes()), ", weight ", c10::str(weight.sizes()), ", targets ",
         c10::str(targets.sizes()), " of ", c10::str(targets.scalar_type()),
         ", expected [..., dim], [vocab, dim] and [...] of int64");
  }
}

Pieces pieces_of(const torch::Tensor& hidden, const torch::Tensor& weight, const torch::Tensor& targets,
                 std::int64_t at_once) {
  const bool autocast = ops::autocast_on(hidden.device().type());
  const torch::ScalarType dtype = autocast ? torch::kBFloat16 : hidden.scalar_type();
  Pieces pieces{hidden.reshape({-1, hidden.size(-1)}), targets.reshape({-1}), weight.to(dtype), at_once};
  const std::int64_t row = weight.size(0) * static_cast<std::int64_t>(pieces.weight.element_size());
  if (at_once <= 0) pieces.at_once = std::max<std::int64_t>(1, (hidden.is_cuda() ? kDeviceLogits : kHostLogits) / row);
  return pieces;
}

// visit(first, h, logits, target): logits [n, vocab] are those of tokens first, first + 1, ...
template <class Visit>
void each_piece(const Pieces& pieces, const Visit& visit) {
  for (std::int64_t first = 0; first < pieces.hidden.size(0); first += pieces.at_once) {
    const std::int64_t count = std::min(pieces.at_once, pieces.hidden.size(0) - first);
    const torch::Tensor h = pieces.hidden.narrow(0, first, count).to(pieces.weight.scalar_type());
    visit(first, h, torch::mm(h, pieces.weight.t()), pieces.targets.narrow(0, first, count));
  }
}

class HeadLoss : public torch::autograd::Function<HeadLoss> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& hidden,
                               const torch::Tensor& weight, const torch::Tensor& targets, std::int64_t at_once) {
    const Pieces pieces = pieces_of(hidden, weight, targets, at_once);
    torch::Tensor sum = torch::zeros({}, hidden.options().dtype(torch::kDouble));
    const torch::ScalarType wide = hidden.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
    torch::Tensor dhidden, dweight;
    if (hidden.requires_grad()) dhidden = torch::empty_like(pieces.hidden);
    if (weight.requires_grad()) dweight = torch::zeros(weight.sizes(), weight.options().dtype(wide));
    const bool gradient = dhidden.defined() || dweight.defined();
    each_piece(pieces, [&](std::int64_t first, const torch::Tensor& h, const torch::Tensor& logits,
                           const torch::Tensor& target) {
      sum += ops::cross_entropy_(logits, target, kIgnoredTarget, gradient).sum(torch::kDouble);
      const torch::Tensor& dlogits = logits;
      if (dhidden.defined()) dhidden.narrow(0, first, h.size(0)).copy_(torch::mm(dlogits, pieces.weight));
      if (dweight.defined()) dweight.add_(torch::mm(dlogits.t(), h));
    });
    context->save_for_backward({dhidden, dweight});
    context->saved_data["shape"] = hidden.sizes().vec();
    context->saved_data["dtype"] = weight.scalar_type();
    return sum.to(wide);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const auto scaled = [&](const torch::Tensor& x) { return x.defined() ? x * gradients[0].to(x.scalar_type()) : x; };
    torch::Tensor dhidden = scaled(saved[0]), dweight = scaled(saved[1]);
    if (dhidden.defined()) dhidden = dhidden.view(context->saved_data["shape"].toIntVector());
    if (dweight.defined()) dweight = dweight.to(context->saved_data["dtype"].toScalarType());
    return {dhidden, dweight, torch::Tensor(), torch::Tensor()};
  }
};

}  // namespace

torch::Tensor head_loss(const torch::Tensor& hidden, const torch::Tensor& weight, const torch::Tensor& targets,
                        std::int64_t at_once) {
  check(hidden, weight, targets);
  if (!torch::GradMode::is_enabled()) return token_losses(hidden, weight, targets, at_once).sum();
  return HeadLoss::apply(hidden, weight, targets, at_once);
}

torch::Tensor token_losses(const torch::Tensor& hidden, const torch::Tensor& weight, const torch::Tensor& targets,
                           std::int64_t at_once) {
  check(hidden, weight, targets);
  const torch::NoGradGuard no_gradient;
  const Pieces pieces = pieces_of(hidden, weight, targets, at_once);
  const torch::ScalarType wide = hidden.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  torch::Tensor losses = torch::empty(pieces.targets.sizes(), hidden.options().dtype(wide));
  each_piece(
      pieces, [&](std::int64_t first, const torch::Tensor&, const torch::Tensor& logits, const torch::Tensor& target) {
        losses.narrow(0, first, target.size(0)).copy_(ops::cross_entropy_(logits, target, kIgnoredTarget, false));
      });
  return losses.view(targets.sizes());
}

}  // namespace mhla
