// Length policies of the causal matrix: plans around the limit, messages, and the extended matrix by hand.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/testing/tensor.h"

namespace mhla {
namespace {

constexpr LengthPolicy kPolicies[] = {LengthPolicy::kError, LengthPolicy::kTruncateLeft, LengthPolicy::kRechunk,
                                      LengthPolicy::kExtend};

TEST(MixLength, EveryPolicyLeavesALengthThatFitsAlone) {
  for (const LengthPolicy policy : kPolicies) {
    for (const std::int64_t tokens : {0, 1, 63, 64, 65, 2047, 2048}) {
      const LengthPlan plan = plan_length(32, 64, tokens, policy);
      const LengthPlan want{.policy = policy, .tokens = tokens, .chunk = 64, .rows = (tokens + 63) / 64};
      EXPECT_EQ(plan, want) << name_of(policy) << " " << tokens;
    }
  }
  EXPECT_EQ(describe(plan_length(32, 64, 64, LengthPolicy::kError)), "fits: 64 tokens, 1 chunk of 64");
}

TEST(MixLength, ErrorNamesTheLengths) {
  try {
    plan_length(32, 64, 2049, LengthPolicy::kError);
    FAIL() << "2049 tokens accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* part : {"2049 tokens", "33 chunks of 64", "32 rows", "at most 2048"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST(MixLength, TruncateLeftKeepsTheLastTokens) {
  const LengthPlan plan = plan_length(32, 64, 3000, LengthPolicy::kTruncateLeft);
  const LengthPlan want{LengthPolicy::kTruncateLeft, true, 952, 2048, 64, 32};
  EXPECT_EQ(plan, want);
  EXPECT_EQ(describe(plan), "truncate_left: tokens 952 to 2999, 32 chunks of 64");
}

TEST(MixLength, RechunkUsesLargerChunks) {
  EXPECT_EQ(plan_length(32, 64, 3000, LengthPolicy::kRechunk),
            (LengthPlan{LengthPolicy::kRechunk, true, 0, 3000, 94, 32}));
  EXPECT_EQ(plan_length(32, 64, 2049, LengthPolicy::kRechunk),
            (LengthPlan{LengthPolicy::kRechunk, true, 0, 2049, 65, 32}));
  EXPECT_EQ(plan_length(4, 2, 9, LengthPolicy::kRechunk),
            (LengthPlan{LengthPolicy::kRechunk, true, 0, 9, 3, 3}));  // rounding up may leave rows unused
}

TEST(MixLength, ExtendUsesMoreRows) {
  EXPECT_EQ(plan_length(32, 64, 2049, LengthPolicy::kExtend),
            (LengthPlan{LengthPolicy::kExtend, true, 0, 2049, 64, 33}));
}

RC_GTEST_PROP(MixLength, PlansAreConsistent, ()) {
  const auto rows = *rc::gen::inRange<std::int64_t>(1, 40);
  const auto chunk = *rc::gen::inRange<std::int64_t>(1, 80);
  const auto tokens = *rc::gen::inRange<std::int64_t>(0, 8000);
  const LengthPolicy policy = kPolicies[*rc::gen::inRange(1, 4)];
  const LengthPlan plan = plan_length(rows, chunk, tokens, policy);
  RC_ASSERT(plan.applied == (tokens > rows * chunk));
  RC_ASSERT(plan.first + plan.tokens == tokens);
  RC_ASSERT(plan.rows == (plan.tokens + plan.chunk - 1) / plan.chunk);
  RC_ASSERT(policy == LengthPolicy::kExtend || plan.rows <= rows);
  RC_ASSERT(policy == LengthPolicy::kTruncateLeft || plan.first == 0);
  RC_ASSERT(policy == LengthPolicy::kRechunk || plan.chunk == chunk);
}

TEST(MixLength, HugeLengthsDoNotOverflow) {
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_FALSE(plan_length(huge, huge, huge, LengthPolicy::kError).applied);
  EXPECT_EQ(plan_length(2, 64, huge, LengthPolicy::kTruncateLeft).first, huge - 128);
  EXPECT_EQ(plan_length(2, 64, huge, LengthPolicy::kRechunk).rows, 2);
}

TEST(MixLength, RefusesBadSizes) {
  EXPECT_THROW(plan_length(0, 64, 10, LengthPolicy::kExtend), Error);
  EXPECT_THROW(plan_length(32, 0, 10, LengthPolicy::kExtend), Error);
  EXPECT_THROW(plan_length(32, 64, -1, LengthPolicy::kExtend), Error);
}

TEST(MixLength, NamesGoRound) {
  for (const LengthPolicy policy : kPolicies) EXPECT_EQ(parse_length_policy(name_of(policy)), policy);
  EXPECT_THROW(parse_length_policy("truncate"), Error);
  EXPECT_FALSE(needs_whole_length(LengthPolicy::kExtend));
  EXPECT_FALSE(needs_whole_length(LengthPolicy::kError));
  EXPECT_TRUE(needs_whole_length(LengthPolicy::kTruncateLeft));
  EXPECT_TRUE(needs_whole_length(LengthPolicy::kRechunk));
}

// Three stored rows; beyond them the last row slides along the diagonal, and its first entry serves all that is older.
TEST(ExtendMix, ByHand) {
  Tensor mix(DType::kF32, {3, 3});
  const double stored[] = {1, NAN, NAN, 2, 3, NAN, 4, 5, 6};
  for (std::int64_t i = 0; i < 9; ++i) mix.set(i, stored[i]);
  Tensor out(DType::kF32, {6, 6});
  extend_mix(mix.view(), out.view());
  const double want[] = {1, 0, 0, 0, 0, 0,  //
                         2, 3, 0, 0, 0, 0,  //
                         4, 5, 6, 0, 0, 0,  //
                         4, 4, 5, 6, 0, 0,  //
                         4, 4, 4, 5, 6, 0,  //
                         4, 4, 4, 4, 5, 6};
  for (std::int64_t i = 0; i < 36; ++i) EXPECT_EQ(out.at(i), want[i]) << i;
  EXPECT_TRUE(out.guards_intact());

  Tensor leading(DType::kF32, {2, 2});
  extend_mix(mix.view(), leading.view());
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(leading.at(i), want[(i / 2) * 6 + i % 2]);
}

TEST(ExtendMix, OneStoredRowServesEveryChunk) {
  Tensor mix(DType::kF64, {1, 1});
  mix.fill(0.5);
  Tensor out(DType::kF64, {4, 4});
  extend_mix(mix.view(), out.view());
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_EQ(out.at(i), i % 4 <= i / 4 ? 0.5 : 0.0);
}

// The causal operator extends a matrix on the fly; here it meets the matrix written out.
TEST(ExtendMix, IsWhatTheCausalOperatorExtendsTo) {
  Random random(9);
  constexpr std::int64_t L = 3, rows = 8, C = 4, N = rows * C - 1, D = 5;
  Tensor q(DType::kF64, {1, N, 2, D}), k(DType::kF64, {1, N, 2, D}), v(DType::kF64, {1, N, 2, D});
  Tensor mix(DType::kF64, {2, L, L}), extended(DType::kF64, {2, rows, rows});
  for (Tensor* tensor : {&q, &k, &v}) tensor->normal(random);
  mix.uniform(random, 0, 1);
  extend_mix(mix.view(), extended.view());
  ASSERT_EQ(plan_length(L, C, N, LengthPolicy::kExtend).rows, rows);

  ChunkwiseParams params;
  params.q = q.view();
  params.k = k.view();
  params.v = v.view();
  params.mix = mix.view();
  params.chunk = C;
  params.beyond_mix = BeyondMix::kExtend;
  Tensor on_the_fly(DType::kF64, {1, N, 2, D}), written_out(DType::kF64, {1, N, 2, D});
  chunkwise_forward(params, on_the_fly.view());
  params.mix = extended.view();
  params.beyond_mix = BeyondMix::kError;
  chunkwise_forward(params, written_out.view());
  EXPECT_TRUE(max_error(on_the_fly, written_out) <= 1e-14) << worst_element(on_the_fly, written_out);
}

TEST(ExtendMix, PerHeadAndRefusals) {
  Random random(2);
  Tensor mix(DType::kF64, {2, 3, 3});
  mix.normal(random);
  Tensor out(DType::kF64, {2, 5, 5});
  extend_mix(mix.view(), out.view());
  EXPECT_EQ(out.at(25 + 4 * 5 + 3), mix.at(9 + 2 * 3 + 1));
  EXPECT_THROW(extend_mix(mix.view(), Tensor(DType::kF64, {5, 5}).view()), Error);
  EXPECT_THROW(extend_mix(Tensor(DType::kF64, {0, 0}).view(), Tensor(DType::kF64, {5, 5}).view()), Error);
}

}  // namespace
}  // namespace mhla
