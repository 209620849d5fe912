#include "mhla/train/gradients.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"

namespace mhla::train {

GradientNorms gradient_norms(const std::vector<ParamGroup>& groups, bool mix_apart) {
  RECORD_USER_SCOPE("mhla::gradient_norms");
  const torch::NoGradGuard no_gradient;
  GradientNorms norms;
  std::vector<torch::Tensor> grads;
  std::vector<std::size_t> begins;  // of the groups, in grads
  for (const ParamGroup& group : groups) {
    begins.push_back(grads.size());
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      if (!group.params[i].grad().defined()) continue;
      norms.names.push_back(group.names[i]);
      grads.push_back(group.params[i].grad());
    }
  }
  if (grads.empty()) fail("train: no parameter has a gradient; the loss does not depend on the model");
  norms.each = at::stack(at::_foreach_norm(grads, 2)).to(torch::kFloat);
  norms.total = norms.each.norm();
  norms.clipped.assign(groups.size(), norms.total);
  begins.push_back(grads.size());
  const auto norm_of = [&](bool mix) {
    std::vector<torch::Tensor> parts;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto begin = static_cast<std::int64_t>(begins[i]), end = static_cast<std::int64_t>(begins[i + 1]);
      if (groups[i].mix == mix && end > begin) parts.push_back(norms.each.narrow(0, begin, end - begin));
    }
    return parts.empty() ? norms.total : at::cat(parts).norm();
  };
  const bool has_mix = std::any_of(groups.begin(), groups.end(), [](const ParamGroup& group) { return group.mix; });
  if (!mix_apart || !has_mix) return norms;
  const torch::Tensor mix = norm_of(true), rest = norm_of(false);
  for (std::size_t i = 0; i < groups.size(); ++i) norms.clipped[i] = groups[i].mix ? mix : rest;
  return norms;
}

std::vector<torch::Tensor> gradient_scales(const GradientNorms& norms, double weight, double clip_norm) {
  std::vector<torch::Tensor> scales;
  for (std::size_t i = 0; i < norms.clipped.size(); ++i) {
    const torch::Tensor& norm = norms.clipped[i];
    if (i > 0 && norm.is_same(norms.clipped[i - 1])) {
      scales.push_back(scales.back());
    } else {
      scales.push_back(clip_norm == 0.0 ? torch::full_like(norm, 1.0 / weight)
                                        : (clip_norm / (norm / weight + 1e-6)).clamp_max(1.0) / weight);
    }
  }
  return scales;
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
