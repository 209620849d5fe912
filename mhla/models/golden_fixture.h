// Recorded cases of other implementations: tensors "<case>/<name>", one JSON object of options per case. For tests.
#pragma once

#include <gtest/gtest.h>

#include <set>

#include "mhla/io/json.h"
#include "mhla/models/weights_file.h"

namespace mhla {

struct GoldenCase {
  std::string name;
  JsonValue options;
  Weights tensors;  // without "<case>/"

  [[nodiscard]] const torch::Tensor& at(const std::string& key) const {
    const auto found = tensors.find(key);
    if (found == tensors.end()) fail(name, ": no tensor ", key);
    return found->second;
  }
  // Those that start with `prefix`, without it.
  [[nodiscard]] Weights part(const std::string& prefix) const {
    Weights found;
    for (const auto& [key, value] : tensors)
      if (key.compare(0, prefix.size(), prefix) == 0) found[key.substr(prefix.size())] = value;
    return found;
  }
};

inline std::vector<GoldenCase> golden_cases(const std::string& file) {
  const Safetensors stored = Safetensors::read(std::string(MHLA_SOURCE_DIR "/tests/golden/") + file + ".safetensors");
  const Weights all = weights_in(stored);
  std::vector<GoldenCase> cases;
  for (const auto& [name, text] : stored.metadata()) {
    GoldenCase& one = cases.emplace_back();
    one.name = name, one.options = parse_json(text, name);
    for (const auto& [key, value] : all)
      if (key.compare(0, name.size() + 1, name + "/") == 0) one.tensors[key.substr(name.size() + 1)] = value;
  }
  return cases;
}

// max|got - want| / max|want|. NaN and a tensor of another shape are above every bound.
inline double golden_error(const torch::Tensor& got, const torch::Tensor& want) {
  if (!got.defined() || got.sizes() != want.sizes()) return std::numeric_limits<double>::infinity();
  return ((got - want).abs().max() / want.abs().max()).item<double>();
}

// `got` has every tensor of `want` within the bound.
inline void expect_golden(const Weights& got, const Weights& want, const std::string& label, double bound = 1e-4) {
  EXPECT_FALSE(want.empty()) << label;
  for (const auto& [name, value] : want) {
    const auto found = got.find(name);
    ASSERT_NE(found, got.end()) << label << ": " << name << " is missing";
    EXPECT_LE(golden_error(found->second, value), bound) << label << ": " << name;
  }
}

}  // namespace mhla
