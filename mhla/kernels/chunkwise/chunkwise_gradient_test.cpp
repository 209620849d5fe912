// The reference's gradients by finite differences in f64: every combination of options, then random
// shapes; and what is promised about outputs that are not wanted or not used.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "mhla/testing/case_gen.h"
#include "mhla/testing/each_candidate.h"
#include "mhla/testing/gradients.h"

namespace mhla {
namespace {

constexpr Form kForm = Form::kCausal;
const bool kSeeded = fix_seed();

TEST(ChunkwiseGradient, EveryCombinationOfOptions) {
  for (const Case& c : option_combinations(kForm)) EXPECT_EQ(check_gradients(c), "");
}

RC_GTEST_PROP(ChunkwiseGradient, RandomShapes, ()) {
  const Case c = *any_case(kForm);
  const std::string wrong = check_gradients(c);
  if (!wrong.empty()) RC_FAIL(wrong);
}

class ChunkwiseWanted : public CandidateTest {
 protected:
  void SetUp() override {
    CandidateTest::SetUp();
    ASSERT_TRUE(IsSkipped() || has_backward(kForm, GetParam()));
  }
};
INSTANTIATE_TEST_SUITE_P(Candidates, ChunkwiseWanted, each_candidate(kForm), candidate_name);

// A gradient that is not wanted is not computed, and the wanted ones do not change.
TEST_P(ChunkwiseWanted, OnlyWhatIsWanted) {
  int taken = 0;
  for (const bool den : {false, true}) {
    Case c;
    c.form = kForm, c.B = 2, c.N = 20, c.H = 4, c.Hkv = 2, c.D = 16, c.E = 24, c.layout = Layout::line(8), c.eps = 0.1;
    c.den = den;
    if (!take(c).empty()) continue;  // q_den and k_den
    ++taken;
    const CaseInputs inputs(c);
    const CaseResult all = run_case(c, inputs, options());
    for (std::size_t f = 1; f < std::size(kResultFields); ++f) {
      const Tensor& want = all.*kResultFields[f].tensor;
      if (!want.given()) continue;
      const Tensor got = run_case(c, inputs, options(), 1u << f).*kResultFields[f].tensor;
      EXPECT_TRUE(got.same_bits(want)) << kResultFields[f].name << " " << worst_element(got, want);
    }
  }
  EXPECT_GT(taken, 0);
}

TEST_P(ChunkwiseWanted, DmixIsZeroWhereMixIsNotUsed) {
  Case c;
  c.form = kForm, c.N = 20, c.D = 16, c.E = 16, c.layout = Layout::line(8), c.rows = 6, c.H = 2, c.Hkv = 2;
  ASSERT_EQ(take(c), "");
  const CaseInputs inputs(c);
  const Tensor dmix = run_case(c, inputs, options()).dmix;
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t b = 0; b < 6; ++b) {
      if (i < 3 && b <= i)
        EXPECT_NE(dmix.at(i * 6 + b), 0) << i << " " << b;
      else
        EXPECT_EQ(dmix.at(i * 6 + b), 0) << i << " " << b;
    }
  }
  for (const auto& [B, N] : {std::pair{0, 20}, {2, 0}}) {  // no token at all
    c.B = B, c.N = N;
    const Tensor nothing = run_case(c, CaseInputs(c), options()).dmix;
    for (std::int64_t index = 0; index < nothing.numel(); ++index) EXPECT_EQ(nothing.at(index), 0);
  }
}

}  // namespace
}  // namespace mhla
