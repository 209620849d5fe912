// Tests of recorded cases: every tensor that a golden file expects, against what is computed.
#pragma once

#include <gtest/gtest.h>

#include "mhla/models/recorded.h"

namespace mhla {

// "flow": of images; "video/flow_sampler": of another folder.
inline std::string golden_file(const std::string& file) {
  const std::string folder = file.find('/') == std::string::npos ? "image/" : "";
  return MHLA_SOURCE_DIR "/tests/golden/" + folder + file + ".safetensors";
}

// max |got - want| / max |want|; integers must be equal.
inline void expect_recorded(const std::string& name, const torch::Tensor& got, const torch::Tensor& want,
                            double limit) {
  ASSERT_EQ(got.sizes(), want.sizes()) << name;
  if (!want.is_floating_point()) {
    EXPECT_TRUE(torch::equal(got.to(want.scalar_type()), want)) << name;
    return;
  }
  const torch::Tensor a = got.detach().to(torch::kDouble), b = want.to(torch::kDouble);
  const double off = (a - b).abs().max().item<double>(), most = b.abs().max().item<double>();
  EXPECT_LE(off, limit * most) << name << ": " << off / most;
}

// What a computation may not see.
inline bool is_expected(const std::string& name) {
  return name.rfind("out", 0) == 0 || name.rfind("grad.", 0) == 0 || name.rfind("init.", 0) == 0;
}

inline void expect_recorded_case(const std::string& file, const std::string& name, const RecordedFamilies& families,
                                 double limit = 1e-4) {
  SCOPED_TRACE(file + " " + name);
  RecordedCase c = read_recorded(golden_file(file), name);
  Weights wanted;
  for (auto it = c.tensors.begin(); it != c.tensors.end();) {
    if (is_expected(it->first))
      wanted.insert(*it), it = c.tensors.erase(it);
    else
      ++it;
  }
  ASSERT_FALSE(wanted.empty());
  const Weights got = recompute(families, c.text("family"), c);
  for (const auto& [key, value] : wanted) {
    ASSERT_EQ(got.count(key), 1u) << key << " is not computed";
    expect_recorded(key, got.at(key), value, limit);
  }
  for (const auto& [key, value] : got) {  // outputs may be more
    EXPECT_TRUE(key.rfind("grad.", 0) != 0 || wanted.count(key) == 1) << key << " is not expected";
  }
}

// All cases of a file, of which there are `count`.
inline void expect_recorded_cases(const std::string& file, std::size_t count, const RecordedFamilies& families,
                                  double limit = 1e-4) {
  const std::vector<std::string> names = recorded_names(golden_file(file));
  EXPECT_EQ(names.size(), count) << file;
  for (const std::string& name : names) expect_recorded_case(file, name, families, limit);
}

}  // namespace mhla
