// The plans of the gradients of the causal form on Hopper, without a device.
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_plan.h"

#include <gtest/gtest.h>

namespace mhla::sm90 {
namespace {

TEST(ChunkwiseBackwardPlan, TakesWhatFillsPanels) {
  EXPECT_TRUE(gradients_on_panels(128, 128, 64));
  EXPECT_TRUE(gradients_on_panels(40, 64, 100));
  EXPECT_FALSE(gradients_on_panels(128, 128, 63));  // a tile of 64 tokens would be partly empty
  EXPECT_FALSE(gradients_on_panels(72, 72, 64));    // tiles of 80 rows
  EXPECT_FALSE(gradients_on_panels(32, 32, 64));
  EXPECT_FALSE(gradients_on_panels(136, 128, 64));
}

TEST(ChunkwiseBackwardPlan, KeysFitAMultiprocessor) {
  for (const KeyGradientPlan plan : {KeyGradientPlan{1, 1}, KeyGradientPlan{2, 1}, KeyGradientPlan{2, 2}}) {
    EXPECT_LE(plan.bytes(), sm80::kMaxSharedBytes);
    for (const int at : {plan.keys_at(), plan.values_at(), plan.summary_at()}) EXPECT_EQ(at % 1024, 0);
    EXPECT_EQ(plan.weights_at() % 16, 0);
    EXPECT_EQ(plan.rings_at() % 8, 0);
  }
  EXPECT_EQ((KeyGradientPlan{2, 2}.stage_bytes()), (16 + 32) << 10);
  EXPECT_EQ((KeyGradientPlan{2, 2}.z_at() - KeyGradientPlan{2, 2}.summary_at()), 64 << 10);  // dS of 128 x 256
  // Registers of 384 threads, which start with 168 each.
  EXPECT_LE(KeyGradientPlan::kCopyRegisters + KeyGradientPlan::kKeyRegisters + KeyGradientPlan::kValueRegisters,
            3 * 168);
}

TEST(ChunkwiseBackwardPlan, QueriesFitAMultiprocessor) {
  for (int readers = 1; readers <= 2; ++readers) {
    for (const QueryGradientPlan plan :
         {QueryGradientPlan{1, 1, readers}, QueryGradientPlan{2, 1, readers}, QueryGradientPlan{2, 2, readers}}) {
      EXPECT_LE(plan.bytes(), sm80::kMaxSharedBytes);
      EXPECT_LE(plan.blocks() * (plan.bytes() + 1024), sm80::kAllSharedBytes);
      EXPECT_EQ(plan.own_at() % 1024, 0);
      EXPECT_LE(plan.blocks() * 128 * (QueryGradientPlan::kCopyRegisters + readers * plan.reader_registers()), 65536);
    }
  }
}

TEST(ChunkwiseBackwardPlan, MixesBothWaysByTheRowsOfMix) {
  EXPECT_TRUE(mixes_both_at_once(1, false));
  EXPECT_TRUE(mixes_both_at_once(32, false));
  EXPECT_FALSE(mixes_both_at_once(33, false));
  EXPECT_TRUE(mixes_both_at_once(65, false));
  EXPECT_TRUE(mixes_both_at_once(128, false));
  EXPECT_FALSE(mixes_both_at_once(129, false));
  EXPECT_FALSE(mixes_both_at_once(32, true));  // dP waits for the denominators
  EXPECT_LE(MixBothPlan::blocks() * (MixBothPlan{}.bytes() + 1024), sm80::kAllSharedBytes);
  EXPECT_LE(MixBothPlan::kCopyRegisters + MixBothPlan::kReaderRegisters, 2 * 128);
  EXPECT_LE(MixSquaresPlan{}.bytes(), sm80::kMaxSharedBytes);
  EXPECT_LE(MixSquaresPlan::kCopyRegisters + 2 * MixSquaresPlan::kReaderRegisters, 3 * 168);
}

}  // namespace
}  // namespace mhla::sm90
