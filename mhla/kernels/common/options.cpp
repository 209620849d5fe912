#include "mhla/kernels/common/options.h"

#include <cstdlib>

#include "mhla/core/error.h"

namespace mhla {
namespace {

constexpr std::string_view kNormalizers[] = {"paper", "none", "official"};

std::string list_of(std::span<const std::string_view> names) {
  std::string list;
  for (const std::string_view name : names) list += str(list.empty() ? "" : ", ", name);
  return list;
}

template <class Enum>
Enum parse(std::span<const std::string_view> names, std::string_view name, const char* what) {
  for (std::size_t index = 0; index < names.size(); ++index) {
    if (names[index] == name) return static_cast<Enum>(index);
  }
  fail(what, " is '", name, "', expected one of ", list_of(names));
}

}  // namespace

bool keeps_summaries() {
  static const bool on = [] {
    const char* value = std::getenv("MHLA_KEEP");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return on;
}

std::string_view name_of(Normalizer normalizer) { return kNormalizers[static_cast<int>(normalizer)]; }
std::string feature_map_list() { return list_of(kFeatureMaps); }
FeatureMap parse_feature_map(std::string_view name) { return parse<FeatureMap>(kFeatureMaps, name, "feature map"); }
Normalizer parse_normalizer(std::string_view name) { return parse<Normalizer>(kNormalizers, name, "normalizer"); }

}  // namespace mhla
