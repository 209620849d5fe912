// The tools that judge must notice: each check sees a planted mistake, and NaN never passes.
#include "mhla/testing/accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/testing/plain.h"

namespace mhla {
namespace {

Tensor ramp(DType dtype, std::int64_t size) {
  Tensor x(dtype, {size});
  for (std::int64_t index = 0; index < size; ++index) x.set(index, 1.0 + static_cast<double>(index) / 7);
  return x;
}

TEST(Accuracy, NanFails) {
  const Tensor want = ramp(DType::kF64, 9), plain = ramp(DType::kF32, 9);
  Tensor got = ramp(DType::kF32, 9);
  EXPECT_TRUE(measure_accuracy(got, plain, want, false).holds());
  got.set(4, std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(measure_accuracy(got, plain, want, false).holds());
  EXPECT_NE(worst_element(got, want).find("worst at [4]: got nan"), std::string::npos) << worst_element(got, want);
}

TEST(Accuracy, BoundsFollowPlainCode) {
  const Tensor want = ramp(DType::kF64, 9);
  Tensor plain = ramp(DType::kF32, 9), got = ramp(DType::kF32, 9);
  for (std::int64_t index = 0; index < 9; ++index) {
    plain.set(index, want.at(index) * (1 + 1e-5));
    got.set(index, want.at(index) * (1 + 1.3e-5));
  }
  EXPECT_FALSE(measure_accuracy(got, plain, want, false).holds());  // forward: no worse than plain
  EXPECT_TRUE(measure_accuracy(got, plain, want, true).holds());    // gradients: 1.5 times
  got = ramp(DType::kF32, 9);
  got.set(8, want.at(8) * (1 + 9e-5));  // one element far off
  EXPECT_FALSE(measure_accuracy(got, plain, want, true).holds());
}

TEST(Accuracy, PooledErrorIsTheErrorOfAllRunsTogether) {
  const Tensor want = ramp(DType::kF64, 9);
  Tensor off = ramp(DType::kF64, 9);
  off.set(3, 1.5);
  PooledError error;
  EXPECT_EQ(error.rms(), 0);
  error.add(off, want);
  EXPECT_DOUBLE_EQ(error.rms(), rms_error(off, want));
  EXPECT_DOUBLE_EQ(error.max(), max_error(off, want));
  error.add(want, want);
  EXPECT_DOUBLE_EQ(error.rms(), rms_error(off, want) / std::sqrt(2.0));
  off.set(0, std::numeric_limits<double>::quiet_NaN());
  error.add(off, want), error.add(want, want);
  EXPECT_TRUE(std::isnan(error.rms()) && std::isnan(error.max()));
}

TEST(Accuracy, ForgottenElementsAreSeen) {
  const Tensor fresh(DType::kBF16, {3});
  for (std::int64_t index = 0; index < 3; ++index) EXPECT_TRUE(std::isnan(fresh.at(index)));
}

TEST(Accuracy, WritesOutsideAreSeen) {
  Tensor x(DType::kF32, {4});
  EXPECT_TRUE(x.guards_intact());
  static_cast<float*>(x.data())[4] = 1;
  EXPECT_FALSE(x.guards_intact());
  Tensor y(DType::kF32, {4});
  static_cast<float*>(y.data())[-1] = 1;
  EXPECT_FALSE(y.guards_intact());
}

// The rule is sharp enough to tell f32 arithmetic from 16-bit arithmetic, and 16-bit storage from f32.
TEST(Accuracy, HalfPrecisionArithmeticFailsTheF32Rule) {
  Case c;
  c.N = 64, c.D = 16, c.E = 16, c.eps = 0.1;
  const CaseInputs inputs(c);
  Case narrow = c;
  narrow.dtype = DType::kF16;
  const Tensor want = reference_case(c, inputs).out, plain = plain_case(c, inputs).out;
  const Tensor coarse = plain_case(narrow, inputs.to(DType::kF16)).out.to(DType::kF32);
  EXPECT_FALSE(measure_accuracy(coarse, plain, want, false).holds());
  EXPECT_TRUE(measure_accuracy(plain, plain, want, false).holds());
}

TEST(Accuracy, ARefusedCaseThrows) {
  Case c;
  c.N = 5, c.layout = Layout::line(2), c.eps = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(check_accuracy(c, "ref"), Error);
  EXPECT_THROW(check_accuracy(c, "nobody"), Error);
}

}  // namespace
}  // namespace mhla
