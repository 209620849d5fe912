// The feature maps that the kernels apply themselves: name, formula and slope of each. A new one is written here, as
// vector code in simd/vec-inl.h, cuda/tokens.cuh and cuda/sm80_tiles.cuh, and for those outside in mhla/c.h,
// ops/feature_map.h, models/export/onnx_parts.cpp and python/mhla/feature_maps.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace mhla {

// phi, applied to q, k, q_den and k_den alike, never to v.
enum class FeatureMap : std::uint8_t {
  kReluEps,   // relu(x) + 1e-6
  kRelu,      // relu(x); relu(NaN) is NaN
  kElu1,      // elu(x) + 1: x + 1 above 0, exp(x) below
  kIdentity,  // x
};

inline constexpr std::string_view kFeatureMaps[] = {"relu_eps", "relu", "elu1", "identity"};  // in the enum's order
inline constexpr double kReluEpsilon = 1e-6;  // of kReluEps, independent of the operator's eps

// Whether a map costs so much that streaming keeps its keys mapped.
constexpr bool is_costly(FeatureMap map) { return map == FeatureMap::kElu1; }

inline std::string_view name_of(FeatureMap map) { return kFeatureMaps[static_cast<int>(map)]; }
FeatureMap parse_feature_map(std::string_view name);
std::string feature_map_list();  // "relu_eps, relu, elu1, identity"

// Written so that NaN passes through, as in PyTorch: every comparison with NaN is false.
inline double phi(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::kReluEps: return (x <= 0 ? 0 : x) + kReluEpsilon;
    case FeatureMap::kRelu: return x <= 0 ? 0 : x;
    case FeatureMap::kElu1: return x <= 0 ? std::exp(x) : x + 1;
    case FeatureMap::kIdentity: break;
  }
  return x;
}

// Derivative at x; 0 at 0 for the relu maps.
inline double phi_slope(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::kReluEps:
    case FeatureMap::kRelu: return x <= 0 ? 0 : 1;
    case FeatureMap::kElu1: return x <= 0 ? std::exp(x) : 1;
    case FeatureMap::kIdentity: break;
  }
  return 1;
}

}  // namespace mhla
