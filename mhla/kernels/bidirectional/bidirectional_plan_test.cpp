// The choices of the CPU kernels, on paper: which way, which schedule, how many heads a visit.
#include "mhla/kernels/bidirectional/bidirectional_plan.h"

#include <gtest/gtest.h>

#include "mhla/kernels/common/schedule.h"

namespace mhla {
namespace {

constexpr auto way(std::int64_t N, std::int64_t M, std::int64_t D, Normalizer normalizer = Normalizer::kPaper) {
  return bidirectional_way(N, M, D, D, normalizer);
}

TEST(Plan, TheNamedShapesGoBySummaries) {
  EXPECT_EQ(way(256, 16, 64), BidirectionalWay::kSummaries);     // deit_t_224, dit_s_256
  EXPECT_EQ(way(1024, 16, 72), BidirectionalWay::kSummaries);    // dit_xl_512
  EXPECT_EQ(way(1024, 16, 32), BidirectionalWay::kSummaries);    // sana_1024
  EXPECT_EQ(way(65536, 256, 64), BidirectionalWay::kSummaries);  // dit_s_4096
}

TEST(Plan, ShortSequencesGoQuadratic) {
  EXPECT_EQ(way(1, 1, 64), BidirectionalWay::kQuadratic);
  EXPECT_EQ(way(49, 49, 64), BidirectionalWay::kQuadratic);
  EXPECT_EQ(way(64, 16, 64), BidirectionalWay::kQuadratic);
  EXPECT_EQ(way(196, 49, 128), BidirectionalWay::kQuadratic);
  EXPECT_EQ(way(64, 16, 8), BidirectionalWay::kSummaries);  // small heads: summaries cost little
}

TEST(Plan, WhatTheQuadraticWayCannotDo) {
  EXPECT_EQ(way(64, 16, 64, Normalizer::kOfficial), BidirectionalWay::kSummaries);
  EXPECT_EQ(way(kMaxQuadraticTokens + 1, 257, 256), BidirectionalWay::kSummaries);
}

TEST(Plan, TheChosenWayHasTheFewerFlops) {
  for (std::int64_t N = 1; N <= kMaxQuadraticTokens; N += 5) {
    for (std::int64_t C = 1; C <= N; C += 3) {
      const std::int64_t M = (N + C - 1) / C;
      const bool fewer = quadratic_flops(N, 48, 80) < summary_flops(N, M, 48, 80);
      EXPECT_EQ(bidirectional_way(N, M, 48, 80, Normalizer::kNone) == BidirectionalWay::kQuadratic, fewer);
    }
  }
}

TEST(Plan, Schedule) {
  EXPECT_EQ(schedule_of(256 << 10, 384, 2), Schedule::kUnit);  // dit_s_256: a head's summaries stay on chip
  EXPECT_EQ(schedule_of(4 << 20, 6, 2), Schedule::kPhases);    // dit_s_4096: they do not
  EXPECT_EQ(schedule_of(256 << 10, 1, 2), Schedule::kPhases);  // fewer units than workers
  EXPECT_EQ(schedule_of(4 << 20, 6, 1), Schedule::kUnit);      // nobody to share with
}

TEST(Plan, HeadsPerVisit) {
  EXPECT_EQ(heads_per_visit(6, 260 << 10), 3);   // dit_s_256: in the second-level cache
  EXPECT_EQ(heads_per_visit(36, 68 << 10), 12);  // sana_1024
  EXPECT_EQ(heads_per_visit(5, 1 << 10), 5);
  EXPECT_EQ(heads_per_visit(6, 4400 << 10), 6);  // dit_s_4096: too large for it, so shared by all threads
  EXPECT_EQ(heads_per_visit(12, 6900 << 10), 4);
  EXPECT_EQ(heads_per_visit(6, 17 << 20), 3);  // a million tokens in 1,024 blocks
  EXPECT_EQ(heads_per_visit(36, 64 << 20), 1);
  EXPECT_EQ(heads_per_even_visit(3, 260 << 10, 1, 2), 2);   // deit_t_224 alone: two visits for two workers
  EXPECT_EQ(heads_per_even_visit(36, 68 << 10, 1, 2), 9);   // sana_1024 alone: four, not three
  EXPECT_EQ(heads_per_even_visit(36, 68 << 10, 4, 2), 12);  // there are enough
  EXPECT_EQ(heads_per_even_visit(6, 4400 << 10, 1, 2), 6);  // all threads share every visit
  EXPECT_EQ(heads_per_even_visit(6, 260 << 10, 1, 16), 1);
  for (std::int64_t heads = 1; heads < 40; ++heads) {
    const std::int64_t visit = heads_per_visit(heads, 64 << 10);
    EXPECT_GE(visit, 1);
    EXPECT_LE(visit, 16);
    EXPECT_LE(visit, heads);
  }
}

}  // namespace
}  // namespace mhla
