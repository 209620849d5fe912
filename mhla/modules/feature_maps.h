// Feature maps of q and k: those the kernels fuse, and the learnable ones of the language models. A learnable map
// works on each head's channels and may change their number:
//   t2r       relu(W x)                                                     D
//   hedgehog  softmax([2 y, -2 y]), y = W x + b, W = I and b = 0 at first   2 D
//   hadamard  (W1 x + b1) * (W2 x + b2)                                     D
//   dpfp      [r r^(1), ..., r r^(4)], r = [relu(x), relu(-x)], r^(j) rolled by j: nothing to learn   8 D
#pragma once

#include <string_view>

#include "mhla/kernels/common/options.h"
#include "mhla/modules/torch.h"

namespace mhla {

// The maps of the kernels under their own numbers, then those of layers. fused(FeatureMap::kRelu) is one of the first.
inline constexpr std::uint8_t kFused = std::size(kFeatureMaps);
enum class Features : std::uint8_t { kT2r = kFused, kHedgehog, kHadamard, kDpfp };

std::string_view name_of(Features features);  // "relu_eps", "relu", "elu1", "identity", "t2r", "hedgehog", ...
Features parse_features(std::string_view name);

constexpr Features fused(FeatureMap map) { return static_cast<Features>(map); }
constexpr bool is_fused(Features features) { return static_cast<std::uint8_t>(features) < kFused; }
FeatureMap fused_map(Features features);  // of a fused one
std::int64_t feature_size(Features features, std::int64_t head_dim);

class HeadFeaturesImpl : public torch::nn::Module {
 public:
  HeadFeaturesImpl(Features features, std::int64_t head_dim);
  torch::Tensor forward(const torch::Tensor& x);  // [..., D] to [..., feature_size]

 private:
  Features features_;
  torch::nn::Linear layer_{nullptr}, layer1_{nullptr}, layer2_{nullptr};
};
TORCH_MODULE(HeadFeatures);

}  // namespace mhla
