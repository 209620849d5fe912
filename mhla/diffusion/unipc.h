// UniPC of second order with B(h) = e^h - 1 ("bh2") for flow matching. With a = 1 - s, lambda = ln(a / s), the steps h
// between them and m = x - s v, what the network takes for the sample:
//   predictor   x' = s' / s x - a' expm1(-h) (m + D / 2),  D = (m_before - m) / r, r = (lambda_before - lambda) / h
//   corrector   at the next time, with the m found there, x is taken again with it from the point before
// The first step, and the last, which lands on m, are of first order.
#pragma once

#include "mhla/diffusion/flow_grid.h"
#include "mhla/diffusion/samplers.h"

namespace mhla {

class UnipcSampler : public Sampler {
 public:
  UnipcSampler(const FlowGrid& grid, bool clip);
  Step step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
            const torch::Tensor& noise) override;
  [[nodiscard]] Memory memory() const override;
  void recall(std::int64_t step, const Memory& memory) override;

 private:
  [[nodiscard]] std::int64_t order_of(std::int64_t step) const;
  [[nodiscard]] double lambda(std::size_t i) const;
  [[nodiscard]] torch::Tensor corrected(std::size_t i, const torch::Tensor& m) const;

  std::vector<double> sigmas_;
  bool clip_;
  torch::Tensor point_;                 // x of the step before, corrected
  torch::Tensor previous_, previous2_;  // m of one and two steps before
  std::int64_t order_ = 1;              // of the step before
};

}  // namespace mhla
