// Clipping, the causal mask, row renormalisation, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/testing/tensor.h"

namespace mhla {
namespace {

Tensor matrix(DType dtype, const std::vector<double>& values) {
  const auto M = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(values.size()))));
  Tensor mix(dtype, {M, M});
  for (std::size_t i = 0; i < values.size(); ++i) mix.set(static_cast<std::int64_t>(i), values[i]);
  return mix;
}

void expect_values(const Tensor& mix, const std::vector<double>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_DOUBLE_EQ(mix.at(static_cast<std::int64_t>(i)), want[i]) << i;
}

TEST(MixConstraint, ClipsToTheClosedInterval) {
  Tensor mix = matrix(DType::kF64, {-0.25, 0, 0.5, 1, 1.5, -3, 0.125, 1e-9, 2});
  EXPECT_EQ(constrain_mix({}, mix.view()), 4);
  expect_values(mix, {0, 0, 0.5, 1, 1, 0, 0.125, 1e-9, 1});
  EXPECT_EQ(constrain_mix({}, mix.view()), 0);
}

TEST(MixConstraint, LegalEntriesKeepTheirBits) {
  Random random(7);
  Tensor mix(DType::kF32, {2, 9, 9});
  mix.uniform(random, 0, 1);
  const Tensor before = mix.clone();
  EXPECT_EQ(constrain_mix({}, mix.view()), 0);
  EXPECT_TRUE(mix.same_bits(before));
}

TEST(MixConstraint, OfficialCausalKeepsAFloorEverywhere) {
  Tensor mix = matrix(DType::kF32, {1, 0, 0.5, 0.5});
  EXPECT_EQ(constrain_mix(MixConstraint::official_causal(), mix.view()), 1);
  EXPECT_EQ(mix.at(1), static_cast<double>(1e-5f));  // above the diagonal too: the published mask does nothing
  EXPECT_EQ(constrain_mix(MixConstraint::official_causal(), mix.view()), 0) << "1e-5 in f32 is its own bound";
}

TEST(MixConstraint, CausalHoldsTheUpperTriangleAtZero) {
  Tensor mix = matrix(DType::kF64, {2, NAN, 7, 0.5, 0.25, -1, 0.5, -1, 3});
  EXPECT_EQ(constrain_mix({.causal = true}, mix.view()), 3);
  expect_values(mix, {1, 0, 0, 0.5, 0.25, 0, 0.5, 0, 1});
}

TEST(MixConstraint, RenormalisesRowsAfterClipping) {
  Tensor mix = matrix(DType::kF64, {0.5, -1, 4, 0.25, 0.25, 0.5, 0.1, 0.1, 0});
  constrain_mix({.renormalize_rows = true}, mix.view());
  expect_values(mix, {0.5 / 1.5, 0, 1 / 1.5, 0.25, 0.25, 0.5, 0.5, 0.5, 0});

  Tensor causal = matrix(DType::kF64, {0.5, 9, 0.25, 0.75});
  constrain_mix({.renormalize_rows = true, .causal = true}, causal.view());
  expect_values(causal, {1, 0, 0.25, 0.75});
}

TEST(MixConstraint, RefusesADivergedMatrixAndLeavesItAlone) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Tensor mix = matrix(DType::kF64, {5, 0.5, 0.5, bad});
    try {
      constrain_mix({}, mix.view());
      FAIL() << "accepted " << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("mix[0, 1, 1]"), std::string::npos) << error.what();
    }
    EXPECT_EQ(mix.at(0), 5.0);
  }
  Tensor empty_row = matrix(DType::kF64, {5, 0.5, -1, -2});
  EXPECT_THROW(constrain_mix({.renormalize_rows = true}, empty_row.view()), Error);
  EXPECT_EQ(empty_row.at(0), 5.0);
}

TEST(MixConstraint, RefusesBadBounds) {
  Tensor mix = matrix(DType::kF64, {1, 0, 0, 1});
  EXPECT_THROW(constrain_mix({.lo = 1, .hi = 0}, mix.view()), Error);
  EXPECT_THROW(constrain_mix({.lo = NAN}, mix.view()), Error);
  EXPECT_THROW(constrain_mix({.hi = INFINITY}, mix.view()), Error);
  EXPECT_THROW(constrain_mix({.lo = -1, .renormalize_rows = true}, mix.view()), Error);
  EXPECT_NO_THROW(constrain_mix({.lo = -1}, mix.view()));
}

}  // namespace
}  // namespace mhla
