// Flow matching as SANA has it: x_t = (1 - s) x + s noise, the network predicts the velocity noise - x. Times are
// indices i of T: sigma = i / T, s = k sigma / (1 + (k - 1) sigma) with the shift k, and the network is fed the whole
// part of T s. In training i = whole part of T sigmoid(z), z normal.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "mhla/io/fields.h"
#include "mhla/models/denoiser.h"

namespace mhla {

struct FlowOptions {
  std::int64_t steps = 1000;
  double shift = 1.0;
  double logit_mean = 0.0;
  double logit_std = 1.0;

  template <class Self, class Visit>
  static void fields(Self& o, Visit&& visit) {
    visit("steps", o.steps, "times that the model is trained on");
    visit("shift", o.shift, "shift of the times towards noise; 1 leaves them even, larger images take 3 to 6");
    visit("logit_mean", o.logit_mean, "mean of the logit-normal law of the times in training");
    visit("logit_std", o.logit_std, "deviation of the logit-normal law of the times in training");
  }
  bool operator==(const FlowOptions&) const = default;
};
void check(const FlowOptions& options);

double shifted(double sigma, double shift);

class FlowMatching {
 public:
  explicit FlowMatching(const FlowOptions& options);

  [[nodiscard]] const FlowOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<double>& sigmas() const { return sigmas_; }  // s of every index
  [[nodiscard]] torch::Tensor index_of(const torch::Tensor& z) const;          // int64, of standard normal numbers
  [[nodiscard]] torch::Tensor sigma(const torch::Tensor& index) const;         // f64
  [[nodiscard]] torch::Tensor model_t(const torch::Tensor& index) const;       // int64

  [[nodiscard]] torch::Tensor add_noise(const torch::Tensor& x_start, const torch::Tensor& noise,
                                        const torch::Tensor& index) const;
  static torch::Tensor target(const torch::Tensor& x_start, const torch::Tensor& noise) { return noise - x_start; }
  // [B]: mean (target - out)^2 of every sample.
  static torch::Tensor loss(const torch::Tensor& model_out, const torch::Tensor& x_start, const torch::Tensor& noise);
  torch::Tensor loss(Denoiser& model, const torch::Tensor& x_start, const torch::Tensor& noise,
                     const torch::Tensor& index, const Conditioning& condition) const;

 private:
  FlowOptions options_;
  std::vector<double> sigmas_;
  mutable std::map<std::string, torch::Tensor> tables_;  // [T] f64, by device
};

}  // namespace mhla
