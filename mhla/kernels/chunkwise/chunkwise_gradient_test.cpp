// The reference's gradients by finite differences in f64: every combination of options, then random
// shapes; and what is promised about outputs that are not wanted or not used.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "mhla/testing/case_gen.h"
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

// A gradient that is not wanted is not computed, and the wanted ones do not change.
TEST(ChunkwiseGradient, OnlyWhatIsWanted) {
  for (const std::string_view candidate : candidates_of(kForm)) {
    if (!has_backward(kForm, candidate)) continue;
    Case c;
    c.form = kForm, c.B = 2, c.N = 20, c.H = 4, c.Hkv = 2, c.layout = Layout::line(8), c.den = true, c.eps = 0.1;
    const CaseInputs inputs(c);
    RunOptions run;
    run.candidate = candidate;
    const CaseResult all = run_case(c, inputs, run);
    for (const ResultField& field : kResultFields) {
      if (!field.gradient) continue;
      const Tensor& want = all.*field.tensor;
      Tensor got(want.dtype(), want.shape());
      ChunkwiseGrads grads;
      grads.dout = inputs.dout;
      View* const views[] = {&grads.dq, &grads.dk, &grads.dv, &grads.dmix, &grads.maybe_dq_den, &grads.maybe_dk_den};
      *views[&field - kResultFields - 1] = got.view();
      chunkwise_backward(chunkwise_params(c, inputs), grads, run);
      EXPECT_TRUE(got.same_bits(want)) << candidate << " " << field.name << " " << worst_element(got, want);
    }
  }
}

TEST(ChunkwiseGradient, DmixIsZeroWhereMixIsNotUsed) {
  for (const std::string_view candidate : candidates_of(kForm)) {
    if (!has_backward(kForm, candidate)) continue;
    Case c;
    c.form = kForm, c.N = 20, c.layout = Layout::line(8), c.rows = 6, c.H = 2, c.Hkv = 2;
    const CaseInputs inputs(c);
    RunOptions run;
    run.candidate = candidate;
    const Tensor dmix = run_case(c, inputs, run).dmix;
    for (std::int64_t i = 0; i < 6; ++i) {
      for (std::int64_t b = 0; b < 6; ++b) {
        if (i < 3 && b <= i)
          EXPECT_NE(dmix.at(i * 6 + b), 0) << i << " " << b;
        else
          EXPECT_EQ(dmix.at(i * 6 + b), 0) << candidate << " " << i << " " << b;
      }
    }
    for (const auto& [B, N] : {std::pair{0, 20}, {2, 0}}) {  // no token at all
      c.B = B, c.N = N;
      const Tensor nothing = run_case(c, CaseInputs(c), run).dmix;
      for (std::int64_t index = 0; index < nothing.numel(); ++index) EXPECT_EQ(nothing.at(index), 0);
    }
  }
}

}  // namespace
}  // namespace mhla
