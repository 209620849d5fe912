// The feature maps of the kernels (kernels/common/feature_map.h) with LibTorch's operators.
#pragma once

#include "mhla/kernels/common/feature_map.h"
#include "mhla/ops/torch.h"

namespace mhla::ops {

inline at::Tensor apply_features(const at::Tensor& x, FeatureMap map) {
  switch (map) {
    case FeatureMap::kReluEps: return at::relu(x) + kReluEpsilon;
    case FeatureMap::kRelu: return at::relu(x);
    case FeatureMap::kElu1: return at::elu(x) + 1;
    case FeatureMap::kIdentity: break;
  }
  return x;
}

// The gradient of x from that of apply_features(x).
inline at::Tensor through_features(const at::Tensor& x, FeatureMap map, const at::Tensor& gradient) {
  switch (map) {
    case FeatureMap::kReluEps:
    case FeatureMap::kRelu: return gradient.masked_fill(x <= 0, 0.0);
    case FeatureMap::kElu1: return gradient * x.clamp_max(0).exp();
    case FeatureMap::kIdentity: break;
  }
  return gradient;
}

}  // namespace mhla::ops
