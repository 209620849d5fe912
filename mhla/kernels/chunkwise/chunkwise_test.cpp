// Every candidate of the causal form against the f64 reference: the accuracy rule, forward and
// backward, and the contracts on bits. A new line in the list is picked up here by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "mhla/core/error.h"
#include "mhla/testing/accuracy.h"
#include "mhla/testing/each_candidate.h"

namespace mhla {
namespace {

constexpr Form kForm = Form::kCausal;

std::vector<Case> in_dtype(std::vector<Case> cases, DType dtype) {
  for (Case& c : cases) {
    c.dtype = dtype;
    if (dtype == DType::kF16) c.eps = std::max(c.eps, 0.1);  // 1 / 1e-6 is beyond f16: plain code overflows
  }
  return cases;
}

class ChunkwiseAccuracy : public testing::TestWithParam<std::tuple<std::string_view, DType>> {
 protected:
  static void TearDownTestSuite() { std::cout << accuracy_summary(); }
  static void check(const std::vector<Case>& cases) {
    check_cases(in_dtype(cases, std::get<DType>(GetParam())), std::get<std::string_view>(GetParam()), check_accuracy);
  }
};

TEST_P(ChunkwiseAccuracy, ForgottenShapes) { check(forgotten_shapes(kForm)); }
TEST_P(ChunkwiseAccuracy, Options) { check(option_combinations(kForm)); }
TEST_P(ChunkwiseAccuracy, FastPaths) {
  if (std::get<std::string_view>(GetParam()) == "ref") return;  // has one path
  check(fast_path_shapes(kForm));
}
TEST_P(ChunkwiseAccuracy, LongSequence) {
  Case c;
  c.N = 1024, c.H = 2, c.Hkv = 1, c.D = 64, c.E = 64, c.form = kForm, c.normalizer = Normalizer::kNone,
  c.layout = Layout::line(64);
  check({c});
}

INSTANTIATE_TEST_SUITE_P(Candidates, ChunkwiseAccuracy,
                         testing::Combine(each_candidate(kForm),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF16)),
                         [](const auto& test) {
                           return str(std::get<0>(test.param), "_", name_of(std::get<1>(test.param)));
                         });

class ChunkwiseBits : public CandidateTest {
 protected:
  static void check(const std::vector<Case>& cases, std::string (*what)(const Case&, std::string_view)) {
    check_cases(cases, GetParam(), what);
  }
};
INSTANTIATE_TEST_SUITE_P(Candidates, ChunkwiseBits, each_candidate(kForm), candidate_name);

TEST_P(ChunkwiseBits, RepeatableForEveryThreadCount) { check(forgotten_shapes(kForm), check_repeatable); }
TEST_P(ChunkwiseBits, AloneAsInCompany) { check(forgotten_shapes(kForm), check_alone); }
TEST_P(ChunkwiseBits, HalfPrecisionAloneAsInCompany) {
  check(in_dtype(option_combinations(kForm), DType::kBF16), check_alone);
}
TEST_P(ChunkwiseBits, FastPaths) {
  if (GetParam() == "ref") return;  // has one path
  const std::vector<Case> cases = in_dtype(fast_path_shapes(kForm), DType::kBF16);
  check(cases, check_repeatable);
  check(cases, check_alone);
  check(cases, check_strides);
}
TEST_P(ChunkwiseBits, KeptSummariesChangeNothing) {
  if (!on_device(GetParam())) {  // keeps none
    const Case c = forgotten_shapes(kForm).back();
    std::int64_t kept = -1;
    (void)run_case(c, CaseInputs(c), options(), kOnlyOut, &kept);
    EXPECT_EQ(kept, 0);
    return;
  }
  check(forgotten_shapes(kForm), check_kept);
  check(in_dtype(fast_path_shapes(kForm), DType::kBF16), check_kept);
}
TEST_P(ChunkwiseBits, FastPathsKeepNanInItsSequence) {
  if (GetParam() == "ref") return;
  // The reference runs eight times for each; `simd` has one path for most of them.
  const std::size_t step = GetParam() == "simd" ? 24 : 6;
  std::vector<Case> some;
  for (const Case& c : in_dtype(fast_path_shapes(kForm), DType::kBF16))
    if (some.size() * step < c.seed) some.push_back(c);
  check(some, check_nan_stays);
}
TEST_P(ChunkwiseBits, NanStaysInItsSequence) { check(option_combinations(kForm), check_nan_stays); }
TEST_P(ChunkwiseBits, StridesDoNotMatter) { check(forgotten_shapes(kForm), check_strides); }

}  // namespace
}  // namespace mhla
