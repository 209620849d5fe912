#include "mhla/models/recompute.h"

#include "mhla/ops/torch.h"

namespace mhla {
namespace {

using Body = std::function<torch::Tensor(const torch::Tensor&)>;

struct Kept : torch::CustomClassHolder {
  explicit Kept(Body given, bool autocast_on) : body(std::move(given)), autocast(autocast_on) {}
  Body body;
  bool autocast;
};

// Autocast as it was in the forward pass, while it lives. Casts of weights are remembered by LibTorch whether or not
// gradients were on: those of the forward pass, where they were off, must not be found again here, nor those of here by
// the next step.
class SameAutocast {
 public:
  explicit SameAutocast(bool on) : on_(on), before_(ops::cuda_autocast()) {
    at::autocast::clear_cache();
    if (on_ != before_) ops::set_cuda_autocast(on_);
  }
  ~SameAutocast() {
    if (on_ != before_) ops::set_cuda_autocast(before_);
    at::autocast::clear_cache();
  }
  SameAutocast(const SameAutocast&) = delete;
  SameAutocast& operator=(const SameAutocast&) = delete;

 private:
  bool on_, before_;
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const c10::intrusive_ptr<Kept>& kept) {
    context->save_for_backward({x});
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    return kept->body(x);  // gradients are off here
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = context->saved_data["kept"].toCapsule();
    const Kept& kept = *static_cast<const Kept*>(capsule.get());
    const torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::Tensor y;
    {
      const torch::AutoGradMode on(true);
      const SameAutocast autocast(kept.autocast);
      y = kept.body(x);
    }
    torch::autograd::backward({y}, {gradients[0].to(y.scalar_type())});  // into the parameters, and into x
    return {x.grad(), torch::Tensor()};
  }
};

}  // namespace

torch::Tensor recomputed(const Body& body, const torch::Tensor& x) {
  if (!torch::GradMode::is_enabled() || !x.requires_grad()) return body(x);
  return Recomputed::apply(x, c10::make_intrusive<Kept>(body, ops::cuda_autocast()));
}

}  // namespace mhla
