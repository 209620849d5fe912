// Tests of recorded cases without LibTorch: every array that a golden file expects, against what is computed.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "mhla/io/recorded_arrays.h"

namespace mhla {

// "metrics": of images; "video/umt5_tokenizer": of another folder.
inline std::string golden_arrays(const std::string& file) {
  const std::string folder = file.find('/') == std::string::npos ? "image/" : "";
  return MHLA_SOURCE_DIR "/tests/golden/" + folder + file + ".safetensors";
}

// max |got - want| <= limit * max |want|; NaN fails. A limit of 0: equal.
inline void expect_recorded_arrays(const std::string& file, const std::string& name,
                                   const RecordedArraysFamilies& families, double limit) {
  SCOPED_TRACE(file + " " + name);
  RecordedArraysCase c = read_recorded_arrays(golden_arrays(file), name);
  RecordedArrays wanted;
  for (auto it = c.arrays.begin(); it != c.arrays.end();) {
    if (it->first.rfind("out", 0) == 0)
      wanted.insert(*it), it = c.arrays.erase(it);
    else
      ++it;
  }
  ASSERT_FALSE(wanted.empty());
  const RecordedArrays got = recompute(families, c.text("family"), c);
  for (const auto& [key, want] : wanted) {
    ASSERT_EQ(got.count(key), 1u) << key << " is not computed";
    const RecordedArray& have = got.at(key);
    ASSERT_EQ(have.shape, want.shape) << key;
    double most = 0.0;
    for (const double value : want.values) most = std::max(most, std::abs(value));
    for (std::size_t i = 0; i < want.values.size(); ++i)
      ASSERT_LE(std::abs(have.values[i] - want.values[i]), limit * most) << key << " " << i;
  }
}

}  // namespace mhla
