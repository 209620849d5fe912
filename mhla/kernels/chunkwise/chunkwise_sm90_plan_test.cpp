// The plans of the causal Hopper kernels: what they promise, and what they leave to others, checked without a GPU.
#include "mhla/kernels/chunkwise/chunkwise_sm90_plan.h"

#include <gtest/gtest.h>

#include "mhla/kernels/common/problem.h"

namespace mhla::sm90 {
namespace {

TEST(CausalSm90Plan, PartsOfTheColumnsAreEqual) {
  EXPECT_EQ(column_parts(64), 1);
  EXPECT_EQ(column_parts(128), 1);
  EXPECT_EQ(column_parts(136), 17);  // 8 columns each: 136 = 8 x 17
  EXPECT_EQ(column_parts(144), 2);
  EXPECT_EQ(column_parts(256), 2);
  EXPECT_EQ(column_parts(60), 0);
  for (std::int64_t E = 8; E <= 256; E += 8) {
    const std::int64_t parts = column_parts(E);
    ASSERT_GT(parts, 0) << E;
    EXPECT_EQ(E / parts % 8, 0) << E;
    EXPECT_EQ(E % parts, 0) << E;
    EXPECT_LE(E / parts, 128) << E;
    for (std::int64_t fewer = (E + 127) / 128; fewer < parts; ++fewer) EXPECT_NE(E % (8 * fewer), 0) << E;
  }
}

Problem lm_2048() {
  Problem p;
  p.causal = true;
  p.B = 16, p.N = 2048, p.H = p.Hkv = 4, p.D = 128, p.E = 256, p.M = p.L = 32, p.C = 64, p.Hm = 1;
  p.q.dtype = p.k.dtype = p.v.dtype = p.out.dtype = DType::kBF16;
  return p;
}

TEST(CausalSm90Plan, SaysWhyNot) {
  EXPECT_EQ(fit_causal_problem(lm_2048()), "");
  Problem p = lm_2048();
  p.M = 33, p.extend = true;
  EXPECT_EQ(fit_causal_problem(p), "");
  p.M = 1025;
  EXPECT_EQ(fit_causal_problem(p), "1025 blocks, more than 1024");
  p = lm_2048(), p.E = 100;
  EXPECT_EQ(fit_causal_problem(p), "E = 100: no multiple of 8");
  p = lm_2048(), p.D = 136;
  EXPECT_EQ(fit_causal_problem(p), "D = 136, E = 256: too large");
  p = lm_2048(), p.q.dtype = DType::kF32;
  EXPECT_EQ(fit_causal_problem(p), "dtype f32");
  p = lm_2048(), p.Hm = 4, p.Hkv = 2;
  EXPECT_EQ(fit_causal_problem(p), "a mix per head with shared kv heads");
  p = lm_2048(), p.M = p.L = 1025;
  EXPECT_EQ(fit_causal_problem(p), "1025 blocks, more than 1024");
  p = lm_2048(), p.B = std::int64_t{1} << 24;
  EXPECT_EQ(fit_causal_problem(p), "more blocks than 32 bits count");
}

}  // namespace
}  // namespace mhla::sm90
