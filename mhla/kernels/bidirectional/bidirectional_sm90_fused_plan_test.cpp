// Plans of the fused kernels of Hopper: which blocks come in boxes, and what fits shared memory.
#include "mhla/kernels/bidirectional/bidirectional_sm90_fused_plan.h"

#include <gtest/gtest.h>

#include "mhla/kernels/common/layout.h"

namespace mhla::sm90 {
namespace {

TEST(BlockBoxes, SixteenTokens) {
  const BlockBoxes square = block_boxes(Layout::grid2d(32, 32, 4, 4), 1024);  // dit_xl_512, sana_1024
  EXPECT_EQ(square.across, 8);
  EXPECT_EQ(square.down, 2);
  EXPECT_EQ(square.width, 32);
  EXPECT_EQ(square.columns, 8);
  EXPECT_EQ(square.rows, 8);
  EXPECT_EQ(square.per_row, 4);
  const BlockBoxes line = block_boxes(Layout::line(64), 512);
  EXPECT_EQ(line.across, 16);
  EXPECT_EQ(line.down, 1);
  EXPECT_EQ(line.per_row, 8);
  EXPECT_EQ(block_boxes(Layout::grid2d(16, 16, 4, 4), 256).down, 4);    // blocks of 4 x 4
  EXPECT_EQ(block_boxes(Layout::grid2d(8, 96, 2, 2), 768).across, 16);  // of 4 x 48
}

TEST(BlockBoxes, OthersStayWithTheKernelOfSm80) {
  EXPECT_EQ(block_boxes(Layout::line(64), 500).across, 0);                        // the last block is shorter
  EXPECT_EQ(block_boxes(Layout::line(24), 480).across, 0);                        // 24 tokens are no boxes
  EXPECT_EQ(block_boxes(Layout::grid2d(30, 32, 4, 4), 960).across, 0);            // ragged
  EXPECT_EQ(block_boxes(Layout::grid2d(24, 24, 4, 4), 576).across, 0);            // rows of 6
  EXPECT_EQ(block_boxes(Layout::grid2d(4, 32, 4, 4), 128).across, 0);             // 8 tokens of a row
  EXPECT_EQ(block_boxes(Layout::grid3d({2, 16, 16}, {2, 2, 2}), 512).across, 0);  // frames
}

TEST(PairsInBoxes, FourSquares) {
  const auto in_boxes = [](const Layout& layout, std::int64_t N, std::int64_t M, std::int64_t D) {
    return pairs_in_boxes(M, N / M, sm80::tiles_of(D, D), block_boxes(layout, N));
  };
  EXPECT_TRUE(in_boxes(Layout::grid2d(16, 16, 4, 4), 256, 16, 64));  // dit_s_256
  EXPECT_TRUE(in_boxes(Layout::line(16), 208, 13, 40));
  EXPECT_TRUE(in_boxes(Layout::line(128), 256, 2, 64));
  EXPECT_FALSE(in_boxes(Layout::line(16), 192, 12, 64));              // three squares
  EXPECT_FALSE(in_boxes(Layout::line(16), 272, 17, 64));              // not over pairs
  EXPECT_FALSE(in_boxes(Layout::grid2d(16, 16, 4, 4), 256, 16, 32));  // heads of 32
  EXPECT_FALSE(in_boxes(Layout::grid2d(16, 16, 4, 4), 256, 16, 72));  // and of 72
  EXPECT_FALSE(in_boxes(Layout::grid2d(14, 14, 2, 2), 196, 4, 64));   // blocks of 7 x 7
  EXPECT_FALSE(in_boxes(Layout::grid3d({4, 8, 8}, {2, 2, 2}), 256, 8, 64));
}

constexpr int kMost = sm80::kMaxSharedBytes;
BoxPlan forward(std::int64_t M, std::int64_t D) {
  return box_plan(M, 1024, D, sm80::tiles_of(D, D), block_boxes(Layout::line(1024 / M), 1024), kMost);
}
BoxPlan backward(std::int64_t M, std::int64_t D, std::int64_t N = 1024) {
  return box_gradient_plan(M, N, N / M, D, sm80::tiles_of(D, D), block_boxes(Layout::line(N / M), N), kMost);
}

TEST(BoxPlan, NamedShapes) {
  EXPECT_TRUE(forward(16, 72).fits);  // dit_xl_512
  EXPECT_TRUE(forward(16, 64).fits);
  EXPECT_LE(3 * (forward(16, 32).shared_bytes + 1024), sm80::kAllSharedBytes);  // sana_1024: three blocks of threads
  EXPECT_TRUE(backward(16, 72).fits);
  EXPECT_LE(3 * (backward(16, 32).shared_bytes + 1024), sm80::kAllSharedBytes);
  EXPECT_TRUE(forward(64, 32).fits);
  EXPECT_FALSE(forward(16, 128).fits);
  EXPECT_FALSE(forward(32, 72).fits);
}

TEST(BoxPlan, Backward) {
  EXPECT_FALSE(backward(32, 32).fits);        // blocks of 32 tokens are no tiles of 64
  EXPECT_FALSE(backward(32, 32, 2048).fits);  // dmix is one tile of 16 x 16
  EXPECT_TRUE(backward(8, 64).fits);
  EXPECT_FALSE(backward(8, 64, 4096).fits);  // few heads would leave most of a card idle
}

// Summaries of 16 blocks, and rows of a box, lie in different banks; boxes begin where the copy engine can write them.
TEST(BoxPlan, Banks) {
  for (const int D : {24, 32, 40, 64, 72}) {
    const sm80::Tiles t = sm80::tiles_of(D, D);
    EXPECT_EQ(box_summary_bytes(D, t) % 32, 16) << D;
    EXPECT_EQ(kBoxTokens * sm80::pitch_of(t) % 128, 0) << D;
    for (const BoxWarps& w : {box_warps(t), box_gradient_warps(t)}) {
      EXPECT_EQ(w.slots % w.groups, 0) << D;
      EXPECT_EQ(w.slots % w.pairs(), 0) << D;
      EXPECT_GE(w.per_warp * w.in_group, t.rows) << D;
    }
    EXPECT_EQ(forward(16, D).barriers_at % 8, 0) << D;
    EXPECT_EQ(backward(16, D).barriers_at % 8, 0) << D;
    EXPECT_EQ(backward(16, D).scratch_at % 16, 0) << D;
  }
}

}  // namespace
}  // namespace mhla::sm90
