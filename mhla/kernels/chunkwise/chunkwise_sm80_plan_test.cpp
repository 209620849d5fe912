// The plans of the causal kernels of `sm80` and `sm90`: what they promise, and what they leave to others, checked
// without a GPU.
#include "mhla/kernels/chunkwise/chunkwise_sm80_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {
namespace {

TEST(CausalSm80Plan, PartsOfTheColumnsAreEqual) {
  EXPECT_EQ(column_parts(0), 1);
  EXPECT_EQ(column_parts(64), 1);
  EXPECT_EQ(column_parts(128), 1);
  EXPECT_EQ(column_parts(136), 17);  // 8 columns each: 136 = 8 x 17
  EXPECT_EQ(column_parts(144), 2);
  EXPECT_EQ(column_parts(256), 2);
  for (std::int64_t E = 1; E <= 256; ++E) EXPECT_LE(column_parts(padded_columns(E)), 2) << E;
  for (std::int64_t E = 8; E <= 256; E += 8) {
    const std::int64_t parts = column_parts(E);
    ASSERT_GT(parts, 0) << E;
    EXPECT_EQ(E / parts % 8, 0) << E;
    EXPECT_EQ(E % parts, 0) << E;
    EXPECT_LE(E / parts, 128) << E;
    for (std::int64_t fewer = (E + 127) / 128; fewer < parts; ++fewer) EXPECT_NE(E % (8 * fewer), 0) << E;
  }
}

Problem packed(const std::vector<std::int64_t>& lengths) {
  Problem p;
  p.causal = true, p.B = 1, p.layout = Layout::line(64), p.M = 0;
  p.maybe_cu_seqlens.rank = 1;
  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    p.sequences.push_back({0, start, length});
    p.M = std::max(p.M, (length + 63) / 64);
    start += length;
  }
  return p;
}

TEST(CausalSm80Plan, SequencesOfLikeLengthShareLaunches) {
  Problem batch;
  batch.B = 3, batch.M = 5;
  EXPECT_TRUE(sequence_plan(batch).ranges.empty());
  ASSERT_EQ(sequence_plan(batch).groups.size(), 1U);
  EXPECT_EQ(sequence_plan(batch).groups[0].count, 3);
  EXPECT_EQ(sequence_plan(batch).groups[0].chunks, 5);

  const std::vector<std::int64_t> lengths = {1, 0, 640, 65, 320, 64, 384, 128};
  const SequencePlan plan = sequence_plan(packed(lengths));
  const auto same = [](const TokenRange& a, std::int64_t start, std::int64_t length) {
    return a.start == start && a.length == length;
  };
  ASSERT_EQ(plan.ranges.size(), 7U);
  EXPECT_TRUE(same(plan.ranges[0], 1, 640) && same(plan.ranges[1], 1090, 384) && same(plan.ranges[2], 706, 320));
  EXPECT_TRUE(same(plan.ranges[3], 641, 65) && same(plan.ranges[4], 1474, 128));  // as they come where chunks are equal
  EXPECT_TRUE(same(plan.ranges[5], 0, 1) && same(plan.ranges[6], 1026, 64));
  ASSERT_EQ(plan.groups.size(), 4U);  // 10 and 6 chunks, 5, twice 2, twice 1
  EXPECT_EQ(plan.groups[0].count, 2);
  EXPECT_EQ(plan.groups[1].count, 1);
  EXPECT_EQ(plan.groups[2].first, 3);
  EXPECT_EQ(plan.groups[2].chunks, 2);
  EXPECT_EQ(plan.groups[3].count, 2);
}

TEST(CausalSm80Plan, FewGroupsFewEmptyChunks) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t length = 1; length <= 65536; length += 97) lengths.push_back(length);
  const SequencePlan plan = sequence_plan(packed(lengths));
  EXPECT_LE(plan.groups.size(), 11U);
  std::int64_t worked_on = 0, needed = 0, next = 0;
  for (const SequenceGroup& group : plan.groups) {
    EXPECT_EQ(group.first, next);
    EXPECT_EQ(group.before, worked_on);
    next += group.count;
    worked_on += group.count * group.chunks;
  }
  EXPECT_EQ(next, static_cast<std::int64_t>(lengths.size()));
  EXPECT_EQ(plan.chunks, worked_on);
  for (const std::int64_t length : lengths) needed += (length + 63) / 64;
  EXPECT_LT(worked_on, 2 * needed);
}

Problem lm_2048() {
  Problem p;
  p.causal = true;
  p.B = 16, p.N = 2048, p.H = p.Hkv = 4, p.D = 128, p.E = 256, p.M = p.L = 32, p.C = 64, p.Hm = 1;
  p.q.dtype = p.k.dtype = p.v.dtype = p.out.dtype = DType::kBF16;
  return p;
}

TEST(CausalSm80Plan, SaysWhyNot) {
  EXPECT_EQ(fit_causal_problem(lm_2048()), "");
  Problem p = lm_2048();
  p.M = 33, p.extend = true;
  EXPECT_EQ(fit_causal_problem(p), "");
  p.M = 1025;
  EXPECT_EQ(fit_causal_problem(p), "1025 blocks, more than 1024");
  p = lm_2048(), p.D = 100, p.E = 250;
  EXPECT_EQ(fit_causal_problem(p), "");
  p = lm_2048(), p.D = 129;
  EXPECT_EQ(fit_causal_problem(p), "D = 129, E = 256: too large");
  p = lm_2048(), p.D = 136;
  EXPECT_EQ(fit_causal_problem(p), "D = 136, E = 256: too large");
  p = lm_2048(), p.q.dtype = DType::kF32;
  EXPECT_EQ(fit_causal_problem(p), "dtype f32");
  p = lm_2048(), p.maybe_q_den.rank = 4;
  EXPECT_EQ(fit_causal_problem(p), "q_den and k_den");
  p = lm_2048(), p.Hm = 4, p.Hkv = 2;
  EXPECT_EQ(fit_causal_problem(p), "a mix per head with shared kv heads");
  p = lm_2048(), p.Hm = 4;
  EXPECT_EQ(fit_causal_problem(p), "a mix per head whose heads share memory");
  p.mix.stride[0] = 32 * 32;
  EXPECT_EQ(fit_causal_problem(p), "");
  p = lm_2048(), p.M = p.L = 1025;
  EXPECT_EQ(fit_causal_problem(p), "1025 blocks, more than 1024");
  p = lm_2048(), p.B = std::int64_t{1} << 24;
  EXPECT_EQ(fit_causal_problem(p), "more blocks than 32 bits count");
}

}  // namespace
}  // namespace mhla::sm80
