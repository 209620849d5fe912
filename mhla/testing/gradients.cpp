#include "mhla/testing/gradients.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla {
namespace {

struct Loss {
  double value, size;  // sum(dout * out), sum |dout * out|
};

Loss loss_of(const Case& c, const CaseInputs& inputs, std::string_view candidate) {
  Tensor out(DType::kF64, {c.B, c.N, c.H, c.E});
  RunOptions run;
  run.candidate = candidate;
  if (c.form == Form::kBidirectional) {
    bidirectional_forward(bidirectional_params(c, inputs), out.view(), run);
  } else {
    chunkwise_forward(chunkwise_params(c, inputs), out.view(), run);
  }
  Loss loss{0, 0};
  for (std::int64_t index = 0; index < out.numel(); ++index) {
    const double term = CaseInputs::get(inputs.dout, index) * out.at(index);
    loss.value += term, loss.size += std::abs(term);
  }
  return loss;
}

// `x` moved by step * u, in place. Unread entries of mix are NaN and stay so.
void move(const ConstView& x, const Tensor& u, double step) {
  for (std::int64_t index = 0; index < u.numel(); ++index) {
    CaseInputs::set(x, index, CaseInputs::get(x, index) + step * u.at(index));
  }
}

}  // namespace

std::string check_gradients(Case c, std::string_view candidate) {
  constexpr double kStep = 1e-6;
  c.dtype = DType::kF64;
  c.fused = c.broadcast = false;  // inputs are moved in place, so each element is stored once
  CaseInputs inputs(c);
  RunOptions run;
  run.candidate = candidate;
  const CaseResult result = run_case(c, inputs, run);
  Random random(c.seed + 1000);
  const std::pair<const ConstView*, const ResultField*> pairs[] = {
      {&inputs.q, &kResultFields[1]},           {&inputs.k, &kResultFields[2]},
      {&inputs.v, &kResultFields[3]},           {&inputs.mix, &kResultFields[4]},
      {&inputs.maybe_q_den, &kResultFields[5]}, {&inputs.maybe_k_den, &kResultFields[6]}};
  for (const auto& [x, field] : pairs) {
    if (!x->given()) continue;
    const Tensor& gradient = result.*field->tensor;
    Tensor u(DType::kF64, gradient.shape());
    u.normal(random);
    double slope = 0, size = 0;
    for (std::int64_t index = 0; index < u.numel(); ++index) {
      if (std::isnan(CaseInputs::get(*x, index))) {  // an entry of mix that is never read
        if (gradient.at(index) != 0) {
          return str(field->name, "[", index, "] is ", gradient.at(index), ", expected 0 for an unused entry\n  ",
                     c.name());
        }
        continue;
      }
      slope += gradient.at(index) * u.at(index), size += std::abs(gradient.at(index) * u.at(index));
    }
    move(*x, u, kStep);
    const Loss up = loss_of(c, inputs, candidate);
    move(*x, u, -2 * kStep);
    const Loss down = loss_of(c, inputs, candidate);
    move(*x, u, kStep);
    const double want = (up.value - down.value) / (2 * kStep);
    // Rounding of the two losses, divided by the step, and a part in a million of the gradient itself.
    const double tolerance = 1e-6 * size + 1e-8 * up.size + 1e-12;
    if (!(std::abs(slope - want) <= tolerance)) {
      return str(field->name, ": slope ", slope, " along a random direction, finite differences ", want, ", tolerance ",
                 tolerance, "\n  MHLA_CASE='", c.name(), "'\n");
    }
  }
  return {};
}

}  // namespace mhla
