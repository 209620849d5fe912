#include "mhla/diffusion/gaussian.h"

#include <algorithm>

namespace mhla {
namespace {

std::vector<std::int64_t> row_shape(const torch::Tensor& like) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(like.dim()), 1);
  shape[0] = -1;
  return shape;
}

GaussianOptions checked(GaussianOptions options) {
  check(options);
  return options;
}

}  // namespace

void check(const GaussianOptions& o) {
  (void)schedule_betas(o.schedule, o.steps);
  if (o.variance != "learned_range" && o.variance != "fixed_large" && o.variance != "fixed_small")
    fail("diffusion: variance is '", o.variance, "', expected learned_range, fixed_large or fixed_small");
}

GaussianDiffusion::GaussianDiffusion(GaussianOptions options, std::string_view sections)
    : options_(checked(std::move(options))),
      kept_(respaced_steps(options_.steps, sections)),
      tables_(respaced_betas(schedule_betas(options_.schedule, options_.steps), kept_)) {}

torch::Tensor GaussianDiffusion::at(const std::vector<double>& table, const torch::Tensor& index,
                                    const torch::Tensor& like) const {
  torch::Tensor& here = on_device_[{table.data(), index.device().str()}];
  if (!here.defined()) here = torch::tensor(table, torch::kDouble).to(index.device());
  const torch::ScalarType dtype = like.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return here.index_select(0, index).to(like.device(), dtype).view(row_shape(like));
}

torch::Tensor GaussianDiffusion::model_t(const torch::Tensor& index) const {
  torch::Tensor& here = on_device_[{kept_.data(), index.device().str()}];
  if (!here.defined()) here = torch::tensor(kept_, torch::kLong).to(index.device());
  return here.index_select(0, index);
}

torch::Tensor GaussianDiffusion::add_noise(const torch::Tensor& x_start, const torch::Tensor& noise,
                                           const torch::Tensor& index) const {
  return at(tables_.sqrt_alphas_cumprod, index, x_start) * x_start +
         at(tables_.sqrt_one_minus_alphas_cumprod, index, x_start) * noise;
}

torch::Tensor GaussianDiffusion::posterior_mean(const torch::Tensor& x_start, const torch::Tensor& x,
                                                const torch::Tensor& index) const {
  return at(tables_.posterior_mean_coef1, index, x) * x_start + at(tables_.posterior_mean_coef2, index, x) * x;
}

torch::Tensor GaussianDiffusion::noise_of(const torch::Tensor& x, const torch::Tensor& x_start,
                                          const torch::Tensor& index) const {
  return (at(tables_.sqrt_recip_alphas_cumprod, index, x) * x - x_start) /
         at(tables_.sqrt_recipm1_alphas_cumprod, index, x);
}

torch::Tensor GaussianDiffusion::noise_in(const torch::Tensor& model_out, const torch::Tensor& x) const {
  const std::int64_t channels = x.size(1), expected = learned() ? 2 * channels : channels;
  if (model_out.dim() != x.dim() || model_out.size(1) != expected)
    fail("diffusion: the model gave shape ", c10::str(model_out.sizes()), " for samples of ", c10::str(x.sizes()),
         ", expected ", expected, " channels for variance ", options_.variance);
  return model_out.narrow(1, 0, channels);
}

GaussianDiffusion::Prediction GaussianDiffusion::predict(const torch::Tensor& model_out, const torch::Tensor& x,
                                                         const torch::Tensor& index, bool clip) const {
  Prediction p;
  const torch::Tensor noise = noise_in(model_out, x);
  p.x_start =
      at(tables_.sqrt_recip_alphas_cumprod, index, x) * x - at(tables_.sqrt_recipm1_alphas_cumprod, index, x) * noise;
  if (clip) p.x_start = p.x_start.clamp(-1, 1);
  p.mean = posterior_mean(p.x_start, x, index);
  if (learned()) {
    const torch::Tensor least = at(tables_.posterior_log_variance_clipped, index, x);
    const torch::Tensor most = at(tables_.log_betas, index, x);
    const torch::Tensor share = (model_out.narrow(1, x.size(1), x.size(1)) + 1) / 2;
    p.log_variance = share * most + (1 - share) * least;
  } else {
    const bool large = options_.variance == "fixed_large";
    p.log_variance =
        at(large ? tables_.fixed_large_log_variance : tables_.posterior_log_variance_clipped, index, x).expand_as(x);
  }
  return p;
}

torch::Tensor GaussianDiffusion::ancestral_step(const Prediction& p, const torch::Tensor& index,
                                                const torch::Tensor& noise) const {
  const torch::Tensor moves = (index != 0).to(p.mean.device(), p.mean.scalar_type()).view(row_shape(p.mean));
  return p.mean + moves * (0.5 * p.log_variance).exp() * noise;
}

torch::Tensor GaussianDiffusion::ddim_step(const torch::Tensor& x, const torch::Tensor& x_start,
                                           const torch::Tensor& index, double eta, const torch::Tensor& noise) const {
  const torch::Tensor own = at(tables_.alphas_cumprod, index, x), prev = at(tables_.alphas_cumprod_prev, index, x);
  const torch::Tensor sigma = eta * ((1 - prev) / (1 - own)).sqrt() * (1 - own / prev).sqrt();
  const torch::Tensor mean =
      x_start * prev.sqrt() + (1 - prev - sigma.square()).clamp_min(0).sqrt() * noise_of(x, x_start, index);
  if (eta == 0.0) return mean;
  return mean + (index != 0).to(x.device(), x.scalar_type()).view(row_shape(x)) * sigma * noise;
}

torch::Tensor GaussianDiffusion::ddim_reverse_step(const torch::Tensor& x, const torch::Tensor& x_start,
                                                   const torch::Tensor& index) const {
  const torch::Tensor next = at(tables_.alphas_cumprod_next, index, x);
  return x_start * next.sqrt() + (1 - next).sqrt() * noise_of(x, x_start, index);
}

}  // namespace mhla
