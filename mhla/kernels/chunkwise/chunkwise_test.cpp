// Every candidate of the causal form against the f64 reference: the accuracy rule, forward and
// backward, and the contracts on bits. A new line in the list is picked up here by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "mhla/testing/accuracy.h"

namespace mhla {
namespace {

constexpr Form kForm = Form::kCausal;

void for_each(const std::vector<Case>& cases, std::string (*check)(const Case&, std::string_view)) {
  for (const std::string_view candidate : candidates_of(kForm)) {
    for (const Case& c : cases) EXPECT_EQ(check(c, candidate), "");
  }
}

std::vector<Case> in_dtype(std::vector<Case> cases, DType dtype) {
  for (Case& c : cases) {
    c.dtype = dtype;
    if (dtype == DType::kF16) c.eps = std::max(c.eps, 0.1);  // 1 / 1e-6 is beyond f16: plain code overflows
  }
  return cases;
}

class ChunkwiseAccuracy : public testing::TestWithParam<DType> {
 protected:
  static void TearDownTestSuite() { std::cout << accuracy_summary(); }
};

TEST_P(ChunkwiseAccuracy, ForgottenShapes) { for_each(in_dtype(forgotten_shapes(kForm), GetParam()), check_accuracy); }
TEST_P(ChunkwiseAccuracy, Options) { for_each(in_dtype(option_combinations(kForm), GetParam()), check_accuracy); }
TEST_P(ChunkwiseAccuracy, LongSequence) {
  Case c;
  c.N = 1024, c.H = 2, c.Hkv = 1, c.D = 64, c.E = 64, c.form = kForm, c.normalizer = Normalizer::kNone,
  c.layout = Layout::line(64);
  for_each(in_dtype({c}, GetParam()), check_accuracy);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ChunkwiseAccuracy, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

TEST(ChunkwiseBits, RepeatableForEveryThreadCount) { for_each(forgotten_shapes(kForm), check_repeatable); }
TEST(ChunkwiseBits, AloneAsInCompany) { for_each(forgotten_shapes(kForm), check_alone); }
TEST(ChunkwiseBits, HalfPrecisionAloneAsInCompany) {
  for_each(in_dtype(option_combinations(kForm), DType::kBF16), check_alone);
}
TEST(ChunkwiseBits, NanStaysInItsSequence) { for_each(option_combinations(kForm), check_nan_stays); }
TEST(ChunkwiseBits, StridesDoNotMatter) { for_each(forgotten_shapes(kForm), check_strides); }

}  // namespace
}  // namespace mhla
