#include "mhla/models/recompute.h"

#include "mhla/ops/torch.h"

namespace mhla {
namespace {

using Tensors = std::vector<torch::Tensor>;
using Body = std::function<torch::Tensor(const Tensors&)>;

struct Kept : torch::CustomClassHolder {
  Kept(Body given, torch::DeviceType on) : body(std::move(given)), device(on), autocast(ops::autocast_on(on)) {}
  Body body;
  torch::DeviceType device;
  bool autocast;
};

// Autocast as it was in the forward pass, while it lives. Casts of weights are remembered by LibTorch whether or not
// gradients were on: those of the forward pass, where they were off, must not be found again here, nor those of here by
// the next step.
class SameAutocast {
 public:
  explicit SameAutocast(const Kept& kept)
      : device_(kept.device), on_(kept.autocast), before_(ops::autocast_on(device_)) {
    at::autocast::clear_cache();
    if (on_ != before_) ops::set_autocast(device_, on_);
  }
  ~SameAutocast() {
    if (on_ != before_) ops::set_autocast(device_, before_);
    at::autocast::clear_cache();
  }
  SameAutocast(const SameAutocast&) = delete;
  SameAutocast& operator=(const SameAutocast&) = delete;

 private:
  torch::DeviceType device_;
  bool on_, before_;
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  // A TensorList: LibTorch takes a vector for something that has no gradient.
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const at::TensorList& given,
                               const c10::intrusive_ptr<Kept>& kept) {
    const Tensors inputs = given.vec();
    context->save_for_backward(inputs);
    context->saved_data["kept"] = c10::IValue::make_capsule(kept);
    return kept->body(inputs);  // gradients are off here
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const c10::intrusive_ptr<torch::CustomClassHolder> capsule = context->saved_data["kept"].toCapsule();
    const Kept& kept = *static_cast<const Kept*>(capsule.get());
    Tensors inputs;
    for (const torch::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_(saved.is_floating_point()));
    torch::Tensor y;
    {
      const torch::AutoGradMode on(true);
      const SameAutocast autocast(kept);
      y = kept.body(inputs);
    }
    torch::autograd::backward({y}, {gradients[0].to(y.scalar_type())});  // into the parameters, and into the inputs
    torch::autograd::variable_list result;
    for (const torch::Tensor& input : inputs) result.push_back(input.grad());
    result.emplace_back();  // of the body
    return result;
  }
};

}  // namespace

torch::Tensor recomputed(const Body& body, const Tensors& inputs) {
  bool wanted = false;
  for (const torch::Tensor& input : inputs) wanted = wanted || input.requires_grad();
  if (!torch::GradMode::is_enabled() || !wanted) return body(inputs);
  return Recomputed::apply(at::TensorList(inputs), c10::make_intrusive<Kept>(body, inputs[0].device().type()));
}

torch::Tensor recomputed(const std::function<torch::Tensor(const torch::Tensor&)>& body, const torch::Tensor& x) {
  return recomputed(Body([body](const Tensors& inputs) { return body(inputs[0]); }), Tensors{x});
}

}  // namespace mhla
