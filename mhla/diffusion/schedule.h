// Noise schedules as ADM has them, in f64 on plain arrays. A process of T steps is its betas:
//   acp_t = prod_{s <= t} (1 - beta_s),   x_t = sqrt(acp_t) x_0 + sqrt(1 - acp_t) noise
// Respacing keeps some of the steps and gives the shorter process the betas 1 - acp_t / acp_previous; the network is
// still fed the original step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mhla {

// "linear": from 0.1 / T to 20 / T. "squaredcos_cap_v2": 1 - f((t + 1) / T) / f(t / T) up to 0.999, f a squared cosine.
std::vector<double> schedule_betas(std::string_view schedule, std::int64_t steps);
std::vector<std::string> schedule_names();

// The steps that are kept, ascending. `sections`: "250" keeps so many of all steps, "10,15,20" so many of each of three
// equal parts, "ddim50" every T / 50th; empty keeps all. Strides are added up step by step and rounded half to even, as
// published: not what linspace gives.
std::vector<std::int64_t> respaced_steps(std::int64_t steps, std::string_view sections);
std::vector<double> respaced_betas(const std::vector<double>& betas, const std::vector<std::int64_t>& kept);

// start, ..., stop in `count` equal steps, with numpy's rounding.
std::vector<double> linspace(double start, double stop, std::int64_t count);

struct DiffusionTables {
  explicit DiffusionTables(std::vector<double> betas);
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(betas.size()); }

  std::vector<double> betas, log_betas;
  std::vector<double> alphas_cumprod;       // acp
  std::vector<double> alphas_cumprod_prev;  // 1 at step 0
  std::vector<double> alphas_cumprod_next;  // 0 at the last step
  std::vector<double> sqrt_alphas_cumprod, sqrt_one_minus_alphas_cumprod, log_one_minus_alphas_cumprod;
  std::vector<double> sqrt_recip_alphas_cumprod, sqrt_recipm1_alphas_cumprod;  // sqrt(1 / acp), sqrt(1 / acp - 1)
  // Of x_{t-1} given x_t and x_0: mean = coef1 x_0 + coef2 x_t. The variance of step 0 is 0: its logarithm is step 1's.
  std::vector<double> posterior_mean_coef1, posterior_mean_coef2;
  std::vector<double> posterior_variance, posterior_log_variance_clipped;
  std::vector<double> fixed_large_log_variance;  // log of the betas, at step 0 of the posterior variance of step 1
};

}  // namespace mhla
