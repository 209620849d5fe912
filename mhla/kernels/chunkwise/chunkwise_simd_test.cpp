// What the lists of cases are too small for: chunks of more tokens than are packed at a time, more chunks than are
// mixed at a time, rows of mix far beyond the matrix, and what the vector kernels refuse.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/kernels/common/simd/targets.h"
#include "mhla/testing/accuracy.h"

namespace mhla {
namespace {

Case case_of(std::int64_t N, std::int64_t C, std::int64_t D, std::int64_t E) {
  Case c;
  c.form = Form::kCausal, c.N = N, c.layout = Layout::line(C), c.D = D, c.E = E, c.H = 2, c.Hkv = 2;
  c.normalizer = Normalizer::kNone, c.eps = 0.1;
  return c;
}

std::vector<Case> large_cases() {
  std::vector<Case> cases;
  for (const auto& [N, C, rows] :
       {std::array{150, 70, 0}, {300, 128, 0}, {260, 200, 0}, {129, 64, 0}, {190, 5, 0}, {160, 4, 7}, {150, 65, 2}}) {
    for (int option = 0; option < 4; ++option) {
      Case c = case_of(N, C, 12, 20);
      c.rows = rows, c.extend = rows > 0;
      c.H = option % 2 ? 4 : 2, c.per_head = option == 3;
      c.normalizer = option >= 2 ? Normalizer::kPaper : Normalizer::kNone;
      c.den = option == 2;
      cases.push_back(c);
    }
  }
  return cases;
}

TEST(ChunkwiseSimd, LargeChunksAndManyChunks) {
  for (const Case& c : large_cases()) {
    EXPECT_EQ(check_accuracy(c, "simd"), "");
    EXPECT_EQ(check_repeatable(c, "simd"), "");
  }
}

TEST(ChunkwiseSimd, HalfPrecision) {
  for (Case c : large_cases()) {
    c.dtype = c.per_head ? DType::kF16 : DType::kBF16;
    EXPECT_EQ(check_accuracy(c, "simd"), "");
  }
}

// Vectors of 4, 8 and 16 floats, with and without fused multiply-adds.
TEST(ChunkwiseSimd, EveryInstructionSet) {
  std::vector<Case> cases = large_cases();
  for (const auto& [D, E] : {std::pair{1, 3}, {5, 2}, {7, 40}, {24, 12}, {33, 65}})
    cases.push_back(case_of(50, 16, D, E));
  for (const std::string& target : simd_targets()) {
    use_simd_target(target);
    for (const Case& c : cases) {
      EXPECT_EQ(check_accuracy(c, "simd"), "") << target;
      EXPECT_EQ(check_repeatable(c, "simd"), "") << target;
    }
  }
  use_simd_target("");
}

// Tokens on the right do not change what is on their left: the sequence may be padded.
TEST(ChunkwiseSimd, PaddingOnTheRight) {
  for (const std::int64_t C : {16, 64, 100}) {
    Case c = case_of(230, C, 33, 18);
    const CaseInputs inputs(c);
    const Tensor whole = run_case(c, inputs, {.candidate = "simd"}).out;
    for (const std::int64_t length : {1, 15, 64, 101, 229}) {
      const CaseSlice part = slice_case(c, inputs, 0, 0, length);
      const Tensor alone = run_case(part.c, part.inputs, {.candidate = "simd"}).out;
      for (std::int64_t index = 0; index < alone.numel(); ++index) ASSERT_EQ(alone.at(index), whole.at(index));
    }
  }
}

TEST(ChunkwiseSimd, RefusesLargeHeads) {
  for (const auto& [D, E, reason] : {std::tuple{257, 8, "simd: D = 257, at most 256"}, {8, 300, "simd: E = 300"}}) {
    const Case c = case_of(4, 2, D, E);
    const CaseInputs inputs(c);
    Tensor out(c.dtype, {c.B, c.N, c.H, c.E});
    try {
      chunkwise_forward(chunkwise_params(c, inputs), out.view());
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace mhla
