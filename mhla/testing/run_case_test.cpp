// Running a case: only what is wanted is computed, and what a kernel must not write is watched, on the host and on a
// device.
#include "mhla/testing/run_case.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/testing/run_case_device.h"

namespace mhla {
namespace {

Case small_case() {
  Case c;
  c.B = 2, c.N = 11, c.H = 4, c.Hkv = 2, c.D = 3, c.E = 5, c.layout = Layout::line(4), c.den = true, c.eps = 0.1;
  return c;
}

TEST(RunCase, OnlyWhatIsWanted) {
  const Case c = small_case();
  const CaseInputs inputs(c);
  RunOptions run;
  run.candidate = "ref";
  const CaseResult all = run_case(c, inputs, run);
  for (std::size_t f = 0; f < std::size(kResultFields); ++f) {
    const CaseResult one = run_case(c, inputs, run, 1u << f);
    for (const ResultField& field : kResultFields) {
      const bool wanted = &field == &kResultFields[f];
      ASSERT_EQ((one.*field.tensor).given(), wanted) << field.name;
      EXPECT_TRUE(!wanted || (one.*field.tensor).same_bits(all.*field.tensor)) << field.name;
    }
  }
}

TEST(RunCase, WhereCandidatesWork) {
  EXPECT_TRUE(on_device("cuda") && on_device("sm80") && on_device("sm90"));
  EXPECT_FALSE(on_device("simd") || on_device("ref") || on_device(""));
  EXPECT_EQ(missing_here("simd"), "");
  EXPECT_EQ(missing_here("cuda"), cuda_missing());
  EXPECT_EQ(steps_aside(small_case(), "simd"), "");
  EXPECT_EQ(steps_aside(small_case(), "cuda"), "") << "cuda takes everything: a refusal is a failure, no reason";
}

TEST(RunCase, ExtentGoesFromTheFirstToTheLastElement) {
  float memory[100] = {};
  ConstView view(memory, DType::kF32, {2, 3, 5});
  EXPECT_EQ(extent_of(view).size(), 30 * sizeof(float));
  view.stride = {40, 7, 1};
  EXPECT_EQ(extent_of(view).size(), (40 + 14 + 4 + 1) * sizeof(float));
  view.stride = {0, 7, 1};
  EXPECT_EQ(extent_of(view).size(), (14 + 4 + 1) * sizeof(float));
  view.data = memory + 20;
  view.stride = {0, -7, 1};
  EXPECT_EQ(static_cast<const void*>(extent_of(view).data()), memory + 6);
  EXPECT_EQ(extent_of(view).size(), (14 + 4 + 1) * sizeof(float));
  view.shape[1] = 0;
  EXPECT_TRUE(extent_of(view).empty());
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_missing().empty()) GTEST_SKIP() << cuda_missing();
  }
};

TEST_F(OnDevice, AViewMovesThereAndBack) {
  Tensor in(DType::kF32, {4, 6}), out(DType::kF32, {4, 6});
  for (std::int64_t index = 0; index < in.numel(); ++index) in.set(index, static_cast<double>(index));
  ConstView columns = std::as_const(in).view();  // columns 1 to 4
  columns.data = static_cast<const float*>(columns.data) + 1, columns.shape[1] = 4;
  View rows = out.view();
  rows.data = static_cast<float*>(rows.data) + 1, rows.shape[1] = 4;
  DevicePlace place(0, nullptr);
  ConstView device_in = columns;
  View device_out = rows;
  place.move_input(device_in, "in");
  place.move_output(device_out, out.guarded_bytes(), "out");
  EXPECT_EQ(device_in.device, 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device_in.data) % 256,
            reinterpret_cast<std::uintptr_t>(columns.data) % 256);
  for (int row = 0; row < 4; ++row) {
    device_copy(static_cast<float*>(device_out.data) + 6 * row, static_cast<const float*>(device_in.data) + 6 * row, 16,
                0);
  }
  place.finish("a copy");
  EXPECT_TRUE(contiguous(rows).same_bits(contiguous(columns)));
  EXPECT_TRUE(out.guards_intact());
  EXPECT_TRUE(std::isnan(out.at(0)) && std::isnan(out.at(5)));
}

TEST_F(OnDevice, WritesThatMustNotBeAreSeen) {
  for (const std::int64_t offset : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{24}}) {  // before, inside, behind
    Tensor in(DType::kF32, {4, 6});
    in.fill(1);
    DevicePlace place(0, nullptr);
    ConstView view = std::as_const(in).view();
    place.move_input(view, "in");
    device_fill(static_cast<float*>(const_cast<void*>(view.data)) + offset, 7, 4, 0);
    EXPECT_THROW(place.finish("a stray write"), Error) << offset;
  }
  for (const std::int64_t offset : {std::int64_t{-1}, std::int64_t{24}, std::int64_t{24 + 100}}) {
    Tensor out(DType::kF32, {4, 6});
    DevicePlace place(0, nullptr);
    View view = out.view();
    place.move_output(view, out.guarded_bytes(), "out");
    device_fill(static_cast<float*>(view.data) + offset, 7, 4, 0);
    bool seen = false;
    try {
      place.finish("a stray write");
    } catch (const Error&) {
      seen = true;
    }
    EXPECT_TRUE(seen || !out.guards_intact()) << offset;
  }
}

}  // namespace
}  // namespace mhla
