// The losses of Gaussian diffusion, per sample:
//   mse = mean (noise - predicted)^2
//   vb  = KL(posterior || predicted) in bits; at step 0 the negative log likelihood of x_0 as one of 256 levels
//   total = mse + vb
#include <cmath>

#include "mhla/diffusion/gaussian.h"

namespace mhla {
namespace {

const double kLn2 = std::log(2.0);

torch::Tensor mean_of_sample(const torch::Tensor& x) { return x.flatten(1).mean(1); }

// KL of two normal laws by means and logarithms of variances, element by element.
torch::Tensor normal_kl(const torch::Tensor& mean, const torch::Tensor& log_variance, const torch::Tensor& other_mean,
                        const torch::Tensor& other_log_variance) {
  return 0.5 * (-1.0 + other_log_variance - log_variance + (log_variance - other_log_variance).exp() +
                (mean - other_mean).square() * (-other_log_variance).exp());
}

// The tanh approximation of the normal distribution function.
torch::Tensor normal_cdf(const torch::Tensor& x) {
  return 0.5 * (1.0 + (std::sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x.pow(3))).tanh());
}

// Of x in [-1, 1] rounded to 256 levels: the mass of a bin of half-width 1 / 255, of a tail at both ends.
torch::Tensor log_likelihood_of_levels(const torch::Tensor& x, const torch::Tensor& mean,
                                       const torch::Tensor& log_deviation) {
  const torch::Tensor centred = x - mean, scale = (-log_deviation).exp();
  const torch::Tensor above = normal_cdf(scale * (centred + 1.0 / 255.0));
  const torch::Tensor below = normal_cdf(scale * (centred - 1.0 / 255.0));
  const auto log_of = [](const torch::Tensor& mass) { return mass.clamp_min(1e-12).log(); };
  return torch::where(x < -0.999, log_of(above), torch::where(x > 0.999, log_of(1.0 - below), log_of(above - below)));
}

}  // namespace

torch::Tensor GaussianDiffusion::variational_bits(const Prediction& p, const torch::Tensor& x_start,
                                                  const torch::Tensor& x_t, const torch::Tensor& index) const {
  const torch::Tensor mean = posterior_mean(x_start, x_t, index);
  const torch::Tensor log_variance = at(tables_.posterior_log_variance_clipped, index, x_t);
  const torch::Tensor kl = mean_of_sample(normal_kl(mean, log_variance, p.mean, p.log_variance)) / kLn2;
  const torch::Tensor nll = -mean_of_sample(log_likelihood_of_levels(x_start, p.mean, 0.5 * p.log_variance)) / kLn2;
  return torch::where((index == 0).to(kl.device()), nll, kl);
}

GaussianDiffusion::Loss GaussianDiffusion::loss(const torch::Tensor& model_out, const torch::Tensor& x_start,
                                                const torch::Tensor& x_t, const torch::Tensor& noise,
                                                const torch::Tensor& index) const {
  Loss result;
  const torch::Tensor predicted = noise_in(model_out, x_t);
  result.mse = mean_of_sample((noise - predicted).square());
  result.total = result.mse;
  if (!learned()) return result;
  const std::int64_t channels = x_t.size(1);
  const torch::Tensor frozen = torch::cat({predicted.detach(), model_out.narrow(1, channels, channels)}, 1);
  result.vb = variational_bits(predict(frozen, x_t, index), x_start, x_t, index);
  if (options_.rescaled) result.vb = result.vb * (static_cast<double>(steps()) / 1000.0);
  result.total = result.mse + result.vb;
  return result;
}

GaussianDiffusion::Loss GaussianDiffusion::loss(Denoiser& model, const torch::Tensor& x_start,
                                                const torch::Tensor& noise, const torch::Tensor& index,
                                                const Conditioning& condition) const {
  const torch::Tensor x_t = add_noise(x_start, noise, index);
  const torch::Tensor out = model.denoise(x_t, model_t(index).to(x_t.device()), condition);
  const bool narrow = out.scalar_type() == torch::kBFloat16 || out.scalar_type() == torch::kHalf;
  return loss(narrow ? out.to(torch::kFloat) : out, x_start, x_t, noise, index);
}

torch::Tensor GaussianDiffusion::prior_bits(const torch::Tensor& x_start) const {
  const torch::Tensor last = torch::full({x_start.size(0)}, steps() - 1, torch::kLong);
  const torch::Tensor mean = at(tables_.sqrt_alphas_cumprod, last, x_start) * x_start;
  const torch::Tensor log_variance = at(tables_.log_one_minus_alphas_cumprod, last, x_start);
  const torch::Tensor zero = torch::zeros({1}, mean.options());
  return mean_of_sample(normal_kl(mean, log_variance, zero, zero)) / kLn2;
}

}  // namespace mhla
