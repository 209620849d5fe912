// Feature maps at the places where implementations differ: 0, -0, NaN, infinity.
#include "mhla/kernels/common/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mhla::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(FeatureMaps, Values) {
  EXPECT_EQ(phi(FeatureMap::kRelu, 2.0), 2.0);
  EXPECT_EQ(phi(FeatureMap::kRelu, -2.0), 0.0);
  EXPECT_EQ(phi(FeatureMap::kReluEps, 2.0), 2.0 + 1e-6);
  EXPECT_EQ(phi(FeatureMap::kReluEps, -2.0), 1e-6);
  EXPECT_EQ(phi(FeatureMap::kElu1, 2.0), 3.0);
  EXPECT_EQ(phi(FeatureMap::kElu1, -2.0), std::exp(-2.0));
  EXPECT_EQ(phi(FeatureMap::kElu1, 0.0), 1.0);
  EXPECT_EQ(phi(FeatureMap::kElu1, -kInfinity), 0.0);
  EXPECT_EQ(phi(FeatureMap::kIdentity, -2.0), -2.0);
}

TEST(FeatureMaps, NanStaysNan) {
  for (const FeatureMap map : {FeatureMap::kReluEps, FeatureMap::kRelu, FeatureMap::kElu1, FeatureMap::kIdentity})
    EXPECT_TRUE(std::isnan(phi(map, kNan))) << name_of(map);
}

TEST(FeatureMaps, SlopeAtZeroIsZero) {
  for (const double zero : {0.0, -0.0}) {
    EXPECT_EQ(phi_slope(FeatureMap::kRelu, zero), 0.0);
    EXPECT_EQ(phi_slope(FeatureMap::kReluEps, zero), 0.0);
  }
  EXPECT_EQ(phi_slope(FeatureMap::kElu1, 0.0), 1.0);
  EXPECT_EQ(phi_slope(FeatureMap::kElu1, -1.0), std::exp(-1.0));
  EXPECT_EQ(phi_slope(FeatureMap::kIdentity, -1.0), 1.0);
}

TEST(FeatureMaps, AZeroSlopeBlocksEveryGradient) {
  Array gradient = {kInfinity, kNan, 3.0, -kInfinity};
  through_features(FeatureMap::kRelu, {-1.0, 0.0, 1.0, 1.0}, gradient);
  EXPECT_EQ(gradient, (Array{0.0, 0.0, 3.0, -kInfinity}));
}

TEST(Reference, PositionsFollowTheBlocks) {
  const Positions at(Layout::grid2d(2, 3, 1, 2), 6);
  EXPECT_EQ(at.token, (std::vector<std::int64_t>{0, 1, 3, 4, 2, 5}));
  EXPECT_EQ(at.begin, (std::vector<std::int64_t>{0, 4, 6}));
}

}  // namespace
}  // namespace mhla::reference
