#include "mhla/train/gradients.h"

#include <cmath>

#include "mhla/core/error.h"

namespace mhla::train {

GradientNorms gradient_norms(const std::vector<ParamGroup>& groups) {
  const torch::NoGradGuard no_gradient;
  GradientNorms norms;
  std::vector<torch::Tensor> grads;
  for (const ParamGroup& group : groups) {
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      if (!group.params[i].grad().defined()) continue;
      norms.names.push_back(group.names[i]);
      grads.push_back(group.params[i].grad());
    }
  }
  if (grads.empty()) fail("train: no parameter has a gradient; the loss does not depend on the model");
  norms.each = at::stack(at::_foreach_norm(grads, 2)).to(torch::kFloat);
  norms.total = norms.each.norm();
  return norms;
}

torch::Tensor gradient_scale(const torch::Tensor& total, double weight, double clip_norm) {
  if (clip_norm == 0.0) return torch::full_like(total, 1.0 / weight);
  return (clip_norm / (total / weight + 1e-6)).clamp_max(1.0) / weight;
}

std::string blame(const std::vector<std::string>& names, const std::vector<double>& norms) {
  std::size_t bad = 0, first_bad = 0, largest = names.size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!std::isfinite(norms[i])) {
      if (bad++ == 0) first_bad = i;
    } else if (largest == names.size() || norms[i] > norms[largest]) {
      largest = i;
    }
  }
  std::string text;
  if (bad > 0)
    text = str(bad, " of ", names.size(), " gradients are not finite, the first is ", names[first_bad], " (norm ",
               norms[first_bad], ")");
  if (largest < names.size())
    text += str(text.empty() ? "" : "; ", "the largest ", bad > 0 ? "finite " : "", "gradient is that of ",
                names[largest], ", norm ", norms[largest]);
  return text;
}

}  // namespace mhla::train
