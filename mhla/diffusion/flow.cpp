#include "mhla/diffusion/flow.h"

#include "mhla/diffusion/schedule.h"

namespace mhla {

void check(const FlowOptions& o) {
  if (o.steps < 1 || o.steps > (1 << 20)) fail("flow: steps is ", o.steps, ", expected 1 to ", 1 << 20);
  if (!(o.shift > 0.0)) fail("flow: shift is ", o.shift, ", expected a positive number");
  if (!(o.logit_std >= 0.0)) fail("flow: logit_std is ", o.logit_std, ", expected 0 or more");
}

double shifted(double sigma, double shift) { return shift * sigma / (1 + (shift - 1) * sigma); }

FlowMatching::FlowMatching(const FlowOptions& options) : options_(options) {
  check(options);
  // 1 - linspace and not i / T: the whole part of T s depends on the last bit.
  for (const double alpha : linspace(1.0, 1.0 / static_cast<double>(options.steps), options.steps))
    sigmas_.push_back(shifted(1.0 - alpha, options.shift));
}

torch::Tensor FlowMatching::index_of(const torch::Tensor& z) const {
  const torch::Tensor share = torch::sigmoid(z * options_.logit_std + options_.logit_mean);
  return (share * options_.steps).to(torch::kLong).clamp_max(options_.steps - 1);
}

torch::Tensor FlowMatching::sigma(const torch::Tensor& index) const {
  torch::Tensor& table = tables_[index.device().str()];  // copied to a device once: a step must not wait for it
  if (!table.defined()) table = torch::tensor(sigmas_, torch::kDouble).to(index.device());
  return table.index_select(0, index);
}

torch::Tensor FlowMatching::model_t(const torch::Tensor& index) const {
  return (sigma(index) * options_.steps).to(torch::kLong);
}

torch::Tensor FlowMatching::add_noise(const torch::Tensor& x_start, const torch::Tensor& noise,
                                      const torch::Tensor& index) const {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x_start.dim()), 1);
  shape[0] = -1;
  const torch::ScalarType dtype = x_start.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const torch::Tensor s = sigma(index).to(x_start.device(), dtype).view(shape);
  return (1 - s) * x_start + s * noise;
}

torch::Tensor FlowMatching::loss(const torch::Tensor& model_out, const torch::Tensor& x_start,
                                 const torch::Tensor& noise) {
  if (model_out.sizes() != x_start.sizes())
    fail("flow: the model gave shape ", c10::str(model_out.sizes()), ", expected ", c10::str(x_start.sizes()));
  return (target(x_start, noise) - model_out).square().flatten(1).mean(1);
}

torch::Tensor FlowMatching::loss(Denoiser& model, const torch::Tensor& x_start, const torch::Tensor& noise,
                                 const torch::Tensor& index, const Conditioning& condition) const {
  const torch::Tensor x_t = add_noise(x_start, noise, index);
  return loss(model.denoise(x_t, model_t(index).to(x_t.device()), condition), x_start, noise);
}

}  // namespace mhla
