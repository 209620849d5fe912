// The plans of dmix on Hopper, without a device.
#include "mhla/kernels/common/cuda/sm90_mix_product_plan.h"

#include <gtest/gtest.h>

namespace mhla::sm90 {
namespace {

TEST(MixProductPlan, SharesAreAllSquaresOnce) {
  for (const MixProductPlan& plan : kMixProductPlans) {
    int times[4][4] = {};
    for (int reader = 0; reader < plan.readers; ++reader) {
      const MixShare& share = plan.shares[reader];
      for (int i = 0; i < share.count; ++i) ++times[share.row[i]][share.column[i]];
    }
    for (int i = 0; i < 4; ++i) {
      for (int b = 0; b < 4; ++b) {
        const bool below = plan.rows < 4 || b <= i;  // the causal form needs no others
        EXPECT_EQ(times[i][b], i < plan.rows && b < plan.columns && below ? 1 : 0) << i << " " << b;
      }
    }
  }
}

TEST(MixProductPlan, WithDsAReaderHasARowOfSquares) {
  for (const MixProductPlan& plan : kMixProductPlans) {
    if (!plan.back) continue;
    EXPECT_TRUE(plan.kinds == 1 && plan.readers == plan.rows && plan.rows == plan.columns);
    EXPECT_EQ(plan.mix_at() % 1024, 0);
    for (int reader = 0; reader < plan.readers; ++reader)
      for (int i = 0; i < plan.shares[reader].count; ++i) EXPECT_EQ(plan.shares[reader].row[i], reader);
  }
  EXPECT_FALSE(mix_product_back(64, false) || mix_product_back(129, false) || mix_product_back(100, true));
  EXPECT_TRUE(mix_product_back(65, false) && mix_product_back(128, false));
}

TEST(MixProductPlan, KindsHaveAllRows) {
  for (const MixProductPlan& plan : kMixProductPlans) EXPECT_EQ(plan.kinds * plan.rows, plan.columns);
}

TEST(MixProductPlan, FitsAMultiprocessor) {
  for (const MixProductPlan& plan : kMixProductPlans) {
    EXPECT_LE(plan.bytes(), sm80::kMaxSharedBytes);
    EXPECT_EQ(plan.ring_at() % 1024, 0);
    EXPECT_LE(128 * (MixProductPlan::kCopyRegisters + (plan.readers - 1) * plan.reader_registers + plan.last_registers),
              65536);
    for (int reader = 0; reader < plan.readers; ++reader) {
      const bool last = reader + 1 == plan.readers;
      const int sums = plan.shares[reader].count + (plan.back ? 1 : 0);
      EXPECT_GE(last ? plan.last_registers : plan.reader_registers, 32 * sums + 32);
    }
  }
}

TEST(MixProductPlan, PartsForABlockOfThreadsOnEveryMultiprocessor) {
  EXPECT_EQ(mix_product_splits(64, 1, false), 0);
  EXPECT_EQ(mix_product_splits(65, 1, false), 132);
  EXPECT_EQ(mix_product_splits(128, 12, false), 11);
  EXPECT_EQ(mix_product_splits(129, 1, false), 66);
  EXPECT_EQ(mix_product_splits(256, 100, false), 1);
  EXPECT_EQ(mix_product_splits(257, 1, false), 0);
  EXPECT_EQ(mix_product_splits(128, 1, true), 0);
  EXPECT_EQ(mix_product_splits(129, 1, true), 132);
  EXPECT_EQ(mix_product_splits(256, 4, true), 33);
  EXPECT_EQ(mix_product_splits(257, 1, true), 0);
}

}  // namespace
}  // namespace mhla::sm90
