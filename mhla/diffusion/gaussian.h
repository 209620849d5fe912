// Gaussian diffusion as ADM and DiT have it: the network predicts the noise, and with "learned_range" also where the
// logarithm of the variance lies between that of the posterior and that of beta. README.md has the formulas.
// Indices [B] int64 count the steps of the (respaced) process; the network is fed model_t(index). Tables are f64 and
// are rounded to the dtype of the samples, at least f32, when they are read.
#pragma once

#include <map>

#include "mhla/diffusion/schedule.h"
#include "mhla/io/fields.h"
#include "mhla/models/denoiser.h"

namespace mhla {

struct GaussianOptions {
  std::string schedule = "linear";
  std::int64_t steps = 1000;
  std::string variance = "learned_range";
  bool rescaled = false;

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("schedule", o.schedule, "noise schedule: linear or squaredcos_cap_v2");
    visit("steps", o.steps, "steps of the process that the model is trained on");
    visit("variance", o.variance, "variance of a step: learned_range, fixed_large or fixed_small");
    visit("rescaled", o.rescaled, "multiply the variational term of the loss by steps / 1000");
  }
  bool operator==(const GaussianOptions&) const = default;
};
void check(const GaussianOptions& options);

class GaussianDiffusion {
 public:
  explicit GaussianDiffusion(GaussianOptions options, std::string_view sections = {});  // sections: respaced_steps()
  GaussianDiffusion(GaussianDiffusion&&) = default;  // no copies: tables on devices are known by their addresses
  GaussianDiffusion& operator=(GaussianDiffusion&&) = default;

  [[nodiscard]] const GaussianOptions& options() const { return options_; }
  [[nodiscard]] std::int64_t steps() const { return tables_.steps(); }
  [[nodiscard]] const std::vector<std::int64_t>& kept() const { return kept_; }  // original steps, ascending
  [[nodiscard]] const DiffusionTables& tables() const { return tables_; }
  [[nodiscard]] bool learned() const { return options_.variance == "learned_range"; }
  // Entries of one of the tables as [B, 1, ...], to multiply `like` [B, ...] with.
  [[nodiscard]] torch::Tensor at(const std::vector<double>& table, const torch::Tensor& index,
                                 const torch::Tensor& like) const;
  [[nodiscard]] torch::Tensor model_t(const torch::Tensor& index) const;  // [B] int64: the original step

  [[nodiscard]] torch::Tensor add_noise(const torch::Tensor& x_start, const torch::Tensor& noise,
                                        const torch::Tensor& index) const;

  struct Prediction {
    torch::Tensor x_start, mean, log_variance;  // like x
  };
  // `model_out` [B, channels or 2 channels, ...]. clip: x_start to [-1, 1], for pixels.
  [[nodiscard]] Prediction predict(const torch::Tensor& model_out, const torch::Tensor& x, const torch::Tensor& index,
                                   bool clip = false) const;
  // The noise in model_out, without the variance after it.
  [[nodiscard]] torch::Tensor noise_in(const torch::Tensor& model_out, const torch::Tensor& x) const;

  // One step towards the data. No noise enters at index 0.
  [[nodiscard]] torch::Tensor ancestral_step(const Prediction& p, const torch::Tensor& index,
                                             const torch::Tensor& noise) const;
  // eta 0 needs no noise. The noise in x is derived again from x_start, which may have been clipped.
  [[nodiscard]] torch::Tensor ddim_step(const torch::Tensor& x, const torch::Tensor& x_start,
                                        const torch::Tensor& index, double eta, const torch::Tensor& noise) const;
  // One step towards noise.
  [[nodiscard]] torch::Tensor ddim_reverse_step(const torch::Tensor& x, const torch::Tensor& x_start,
                                                const torch::Tensor& index) const;

  struct Loss {
    torch::Tensor mse, vb, total;  // [B] each; vb in bits, undefined without a learned variance
  };
  // vb trains the variance only: the noise in it is detached.
  [[nodiscard]] Loss loss(const torch::Tensor& model_out, const torch::Tensor& x_start, const torch::Tensor& x_t,
                          const torch::Tensor& noise, const torch::Tensor& index) const;
  // The same with the network: x_start made noisy, seen by `model`, judged.
  [[nodiscard]] Loss loss(Denoiser& model, const torch::Tensor& x_start, const torch::Tensor& noise,
                          const torch::Tensor& index, const Conditioning& condition) const;
  // Bits per dimension that the last step still knows of x_start.
  [[nodiscard]] torch::Tensor prior_bits(const torch::Tensor& x_start) const;

 private:
  [[nodiscard]] torch::Tensor variational_bits(const Prediction& p, const torch::Tensor& x_start,
                                               const torch::Tensor& x_t, const torch::Tensor& index) const;
  [[nodiscard]] torch::Tensor posterior_mean(const torch::Tensor& x_start, const torch::Tensor& x,
                                             const torch::Tensor& index) const;
  [[nodiscard]] torch::Tensor noise_of(const torch::Tensor& x, const torch::Tensor& x_start,
                                       const torch::Tensor& index) const;

  GaussianOptions options_;
  std::vector<std::int64_t> kept_;
  DiffusionTables tables_;
  mutable std::map<std::pair<const void*, std::string>, torch::Tensor> on_device_;  // tables where they were asked for
};

}  // namespace mhla
