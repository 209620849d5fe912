#include "mhla/diffusion/unipc.h"

#include <algorithm>
#include <cmath>

namespace mhla {

UnipcSampler::UnipcSampler(const FlowGrid& grid, bool clip) : sigmas_(grid.sigmas), clip_(clip) { times_ = grid.times; }

double UnipcSampler::lambda(std::size_t i) const { return std::log(1.0 - sigmas_[i]) - std::log(sigmas_[i]); }

std::int64_t UnipcSampler::order_of(std::int64_t step) const {
  return std::min<std::int64_t>({2, steps() - step, step + 1});
}

Sampler::Memory UnipcSampler::memory() const {
  Memory all{{"point", point_}, {"previous", previous_}};
  if (previous2_.defined()) all["previous2"] = previous2_;  // not after the first step
  return all;
}

void UnipcSampler::recall(std::int64_t step, const Memory& memory) {
  const auto take = [&](const char* name) { return recalled(memory, name, {"point", "previous", "previous2"}); };
  point_ = take("point"), previous_ = take("previous");
  previous2_ = step > 1 ? take("previous2") : torch::Tensor();
  order_ = order_of(step - 1);
}

// x at time i, once more from the point before, with m at time i known.
torch::Tensor UnipcSampler::corrected(std::size_t i, const torch::Tensor& m) const {
  const double h = lambda(i) - lambda(i - 1), B = std::expm1(-h), alpha = 1.0 - sigmas_[i];
  torch::Tensor slope;  // times B, what the differences of m add
  if (order_ == 1) {
    slope = 0.5 * (m - previous_);
  } else {  // weights that make it exact for m linear in lambda
    const double r = (lambda(i - 2) - lambda(i - 1)) / h;
    const double first = (B / -h - 1.0) / B, second = 2.0 * ((B / -h - 1.0) / -h - 0.5) / B;
    const double before = (second - first) / (r - 1.0), now = first - before;
    slope = (before / r) * (previous2_ - previous_) + now * (m - previous_);
  }
  return (sigmas_[i] / sigmas_[i - 1]) * point_ - (alpha * B) * (previous_ + slope);
}

Sampler::Step UnipcSampler::step(std::int64_t step, const torch::Tensor& x, const torch::Tensor& model_out,
                                 const torch::Tensor& /*noise*/) {
  const auto i = static_cast<std::size_t>(step);
  torch::Tensor m = x - sigmas_.at(i) * model_out.narrow(1, 0, x.size(1));
  if (clip_) m = m.clamp(-1, 1);
  point_ = step == 0 ? x : corrected(i, m);
  order_ = order_of(step);
  const double next = sigmas_.at(i + 1), alpha = 1.0 - next;
  const double h = next > 0.0 ? lambda(i + 1) - lambda(i) : INFINITY, B = std::expm1(-h);
  torch::Tensor ahead = m;
  if (order_ == 2) ahead = m + (0.5 * h / (lambda(i - 1) - lambda(i))) * (previous_ - m);
  previous2_ = previous_, previous_ = m;
  return {(next / sigmas_[i]) * point_ - (alpha * B) * ahead, m};
}

}  // namespace mhla
