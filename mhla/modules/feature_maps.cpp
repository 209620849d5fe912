#include "mhla/modules/feature_maps.h"

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr std::string_view kNames[] = {"relu_eps", "relu", "elu1", "identity", "t2r", "hedgehog", "hadamard", "dpfp"};
constexpr std::int64_t kDpfpRolls = 4;

}  // namespace

std::string_view name_of(Features features) { return kNames[static_cast<int>(features)]; }

Features parse_features(std::string_view name) {
  std::string names;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return static_cast<Features>(i);
    names += str(names.empty() ? "" : ", ", kNames[i]);
  }
  fail("feature map is '", name, "', expected one of ", names);
}

FeatureMap fused_map(Features features) {
  if (!is_fused(features)) fail("feature map ", name_of(features), " is not fused with the operator");
  return parse_feature_map(name_of(features));
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
  switch (features_) {
    case Features::kReluEps: return x.relu() + kReluEpsilon;
    case Features::kRelu: return x.relu();
    case Features::kElu1: return torch::elu(x) + 1;
    case Features::kIdentity: return x;
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
