// The closed formulas of bench_counts.h against loops that count every product once.
#include "apps/bench/counts.h"

#include <gtest/gtest.h>

namespace mhla::apps {
namespace {

TEST(BenchCounts, BidirectionalForwardIsCountedProductByProduct) {
  const OpSizes s{false, 2, 12, 3, 3, 4, 5, 3, 0, 3};
  double flops = 0.0;
  for (std::int64_t head = 0; head < s.B * s.H; ++head) {
    for (std::int64_t t = 0; t < s.N; ++t) flops += 2.0 * 4 * 5 + 2.0 * 4 * 5;  // S += k v^T; q^T S~
    for (std::int64_t i = 0; i < s.M; ++i)
      for (std::int64_t b = 0; b < s.M; ++b) flops += 2.0 * 4 * 5;  // S~_i += mix S_b
  }
  const Counts counts = count_forward(s, 4);
  EXPECT_EQ(counts.flops, flops);
  EXPECT_EQ(counts.bytes, 4.0 * 2 * 12 * 3 * (4 + 4 + 5 + 5) + 4.0 * 9);
}

TEST(BenchCounts, CausalForwardCountsTheTriangles) {
  const OpSizes s{true, 1, 11, 2, 2, 4, 6, 3, 4, 3};  // chunks of 4, 4, 3
  double flops = 0.0;
  for (std::int64_t head = 0; head < s.H; ++head) {
    for (std::int64_t t = 0; t < s.N; ++t) {
      flops += 2.0 * 4 * 6 + 2.0 * 4 * 6;
      for (std::int64_t u = t / 4 * 4; u <= t; ++u) flops += 2.0 * 4 + 2.0 * 6;  // q.k, times v
    }
    for (std::int64_t i = 0; i < s.M; ++i)
      for (std::int64_t b = 0; b < i; ++b) flops += 2.0 * 4 * 6;
  }
  EXPECT_EQ(count_forward(s, 4).flops, flops);
  EXPECT_EQ(pairs_in_chunks(11, 4), 10.0 + 10.0 + 6.0);
  EXPECT_EQ(pairs_in_chunks(0, 4), 0.0);
}

TEST(BenchCounts, BackwardRecomputesSummaries) {
  const OpSizes s{false, 1, 8, 1, 1, 2, 3, 2, 0, 2};
  const double product = 2.0 * 8 * 2 * 3, mixing = 2.0 * 4 * 2 * 3;
  EXPECT_EQ(count_backward(s, 4).flops, 5 * product + 3 * mixing);
  const OpSizes causal{true, 1, 8, 1, 1, 2, 3, 2, 4, 2};
  const double triangle = 2.0 * 1 * 2 * 3, pairs = 20.0;
  EXPECT_EQ(count_backward(causal, 4).flops, 5 * product + 3 * triangle + pairs * (6 * 2 + 4 * 3));
  EXPECT_EQ(count_backward(s, 2).bytes, 2.0 * 8 * (2 + 2 + 3 + 3 + 2 + 2 + 3) + 2 * 4.0 * 4);
}

TEST(BenchCounts, GroupedHeadsShareTheirSummaries) {
  const OpSizes grouped{false, 1, 8, 4, 2, 2, 2, 2, 0, 2};
  EXPECT_EQ(count_forward(grouped, 4).flops, 2 * (2.0 * 8 * 4 + 2.0 * 4 * 4) + 4 * (2.0 * 8 * 4));
}

TEST(BenchCounts, BothPassesAddUp) {
  const OpSizes s{true, 3, 100, 2, 1, 8, 16, 7, 16, 7};
  const Counts forward = count_pass(s, Pass::kForward, 2), backward = count_pass(s, Pass::kBackward, 2);
  EXPECT_EQ(count_pass(s, Pass::kBoth, 2).flops, forward.flops + backward.flops);
  EXPECT_EQ(count_pass(s, Pass::kBoth, 2).bytes, forward.bytes + backward.bytes);
}

TEST(BenchCounts, ADecodeStepReadsPrefixAndOpenChunk) {
  const OpSizes s{true, 1, 64, 4, 4, 128, 256, 1, 64, 1};
  const Counts step = count_decode(s, 10, 2);
  EXPECT_EQ(step.bytes, 4.0 * 128 * 256 * 4 + 2.0 * (4 * 10 * 384 + 4 * 384));
  EXPECT_EQ(step.flops, 4.0 * (2.0 * 128 * 256 + 10 * 2.0 * 384));
  EXPECT_EQ(count_decode(s, 10, 2, 2).bytes, step.bytes - 2.0 * 4 * 128 * 256);
}

TEST(BenchCounts, ABoundaryReadsEverySummary) {
  const OpSizes s{true, 1, 64, 8, 4, 128, 256, 1, 64, 1};
  const Counts third = count_boundary(s, 3);
  EXPECT_EQ(third.bytes,
            4.0 * 128 * 256 * 4 * 5);  // three summaries read, one of them written before, a prefix written
  EXPECT_EQ(third.flops, 4.0 * 2.0 * 128 * 256 * (64 + 3));
  EXPECT_EQ(count_boundary(s, 3, 2).bytes, third.bytes - 2.0 * 4 * 128 * 256);
}

}  // namespace
}  // namespace mhla::apps
