#include "mhla/modules/feature_maps.h"

#include "mhla/core/error.h"
#include "mhla/ops/feature_map.h"

namespace mhla {
namespace {

constexpr std::string_view kLearned[] = {"t2r", "hedgehog", "hadamard", "dpfp"};  // in the enum's order
constexpr std::int64_t kDpfpRolls = 4;

}  // namespace

std::string_view name_of(Features features) {
  const std::size_t index = static_cast<std::size_t>(features);
  return index < kFused ? kFeatureMaps[index] : kLearned[index - kFused];
}

Features parse_features(std::string_view name) {
  std::string names;
  for (std::size_t i = 0; i < kFused + std::size(kLearned); ++i) {
    const auto features = static_cast<Features>(i);
    if (name_of(features) == name) return features;
    names += str(names.empty() ? "" : ", ", name_of(features));
  }
  fail("feature map is '", name, "', expected one of ", names);
}

FeatureMap fused_map(Features features) {
  if (!is_fused(features)) fail("feature map ", name_of(features), " is not fused with the operator");
  return static_cast<FeatureMap>(features);
}

std::int64_t feature_size(Features features, std::int64_t head_dim) {
  if (features == Features::kHedgehog) return 2 * head_dim;
  if (features == Features::kDpfp) return 2 * kDpfpRolls * head_dim;
  return head_dim;
}

HeadFeaturesImpl::HeadFeaturesImpl(Features features, std::int64_t head_dim) : features_(features) {
  const auto linear = [&](const char* name, bool bias) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(head_dim, head_dim).bias(bias)));
  };
  if (features == Features::kT2r) layer_ = linear("layer", false);
  if (features == Features::kHedgehog) {
    layer_ = linear("layer", true);
    const torch::NoGradGuard no_gradient;
    torch::nn::init::eye_(layer_->weight);
    torch::nn::init::zeros_(layer_->bias);
  }
  if (features == Features::kHadamard) layer1_ = linear("layer1", true), layer2_ = linear("layer2", true);
}

torch::Tensor HeadFeaturesImpl::forward(const torch::Tensor& x) {
  if (is_fused(features_)) return ops::apply_features(x, fused_map(features_));
  switch (features_) {
    case Features::kT2r: return layer_(x).relu();
    case Features::kHadamard: return layer1_(x) * layer2_(x);
    case Features::kHedgehog: {
      const torch::Tensor y = 2 * layer_(x);
      return torch::cat({y, -y}, -1).softmax(-1);
    }
    case Features::kDpfp: {
      const torch::Tensor r = torch::cat({x.relu(), (-x).relu()}, -1);
      std::vector<torch::Tensor> products;
      for (std::int64_t j = 1; j <= kDpfpRolls; ++j) products.push_back(r * r.roll(j, -1));
      return torch::cat(products, -1);
    }
  }
  fail("feature map ", static_cast<int>(features_), " is unknown");
}

}  // namespace mhla
