// Plain code in f64 and the reference are two separate implementations of the same formulas: they must
// agree to rounding, forward and backward, for every combination of options.
#include "mhla/testing/plain.h"

#include <gtest/gtest.h>

#include "mhla/testing/accuracy.h"

namespace mhla {
namespace {

void expect_same(Case c) {
  c.dtype = DType::kF64;
  const CaseInputs inputs(c);
  const CaseResult plain = plain_case(c, inputs), want = reference_case(c, inputs);
  for (const ResultField& field : kResultFields) {
    const Tensor &p = plain.*field.tensor, &w = want.*field.tensor;
    ASSERT_EQ(p.given(), w.given());
    if (!w.given()) continue;
    EXPECT_LE(rms_error(p, w), 1e-12) << field.name << " " << worst_element(p, w) << "\n  " << c.name();
  }
}

TEST(Plain, AgreesWithTheReferenceInDouble) {
  for (const Form form : {Form::kBidirectional, Form::kCausal}) {
    for (const Case& c : option_combinations(form)) expect_same(c);
    for (const Case& c : forgotten_shapes(form)) expect_same(c);
  }
}

// The yardstick must move with the dtype: a plain bf16 pass is worse than f16, f16 worse than f32.
TEST(Plain, ErrorFollowsTheDtype) {
  Case c;
  c.B = 1, c.N = 64, c.D = 16, c.E = 16;
  double previous = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    c.dtype = dtype, c.eps = 0.1;
    const CaseInputs inputs(c);
    const double error = rms_error(plain_case(c, inputs).out, reference_case(c, inputs).out);
    EXPECT_GT(error, 3 * previous) << name_of(dtype);
    EXPECT_LE(error, 4 * epsilon_of(dtype)) << name_of(dtype);
    previous = error;
  }
}

}  // namespace
}  // namespace mhla
