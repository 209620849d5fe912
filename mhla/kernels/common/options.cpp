#include "mhla/kernels/common/options.h"

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr std::string_view kFeatureMaps[] = {"relu_eps", "relu", "elu1", "identity"};
constexpr std::string_view kNormalizers[] = {"paper", "none", "official"};

template <class Enum, std::size_t kCount>
Enum parse(const std::string_view (&names)[kCount], std::string_view name, const char* what) {
  std::string list;
  for (std::size_t index = 0; index < kCount; ++index) {
    if (names[index] == name) return static_cast<Enum>(index);
    list += str(index ? ", " : "", names[index]);
  }
  fail(what, " is '", name, "', expected one of ", list);
}

}  // namespace

std::string_view name_of(FeatureMap map) { return kFeatureMaps[static_cast<int>(map)]; }
std::string_view name_of(Normalizer normalizer) { return kNormalizers[static_cast<int>(normalizer)]; }
FeatureMap parse_feature_map(std::string_view name) { return parse<FeatureMap>(kFeatureMaps, name, "feature map"); }
Normalizer parse_normalizer(std::string_view name) { return parse<Normalizer>(kNormalizers, name, "normalizer"); }

}  // namespace mhla
