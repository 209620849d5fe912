// Names of options: what name_of writes, parse reads, and nothing else.
#include "mhla/kernels/common/options.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"

namespace mhla {
namespace {

TEST(Options, NamesComeBack) {
  for (int index = 0; index < 4; ++index) {
    const auto map = static_cast<FeatureMap>(index);
    EXPECT_EQ(parse_feature_map(name_of(map)), map);
  }
  for (int index = 0; index < 3; ++index) {
    const auto normalizer = static_cast<Normalizer>(index);
    EXPECT_EQ(parse_normalizer(name_of(normalizer)), normalizer);
  }
  EXPECT_EQ(name_of(FeatureMap::kElu1), "elu1");
  EXPECT_EQ(name_of(Normalizer::kOfficial), "official");
}

TEST(Options, UnknownNamesAreRefusedWithTheKnownOnes) {
  for (const char* name : {"", "relu6", "Relu", "relu "}) {
    try {
      parse_feature_map(name);
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(),
                std::string("feature map is '") + name + "', expected one of relu_eps, relu, elu1, identity");
    }
    EXPECT_THROW(parse_normalizer(name), Error);
  }
}

}  // namespace
}  // namespace mhla
