// What the calls refuse; their numbers are tested in mhla/ops/grid_conv_op_test.cpp.
#include "mhla/kernels/grid_conv/grid_conv.h"

#include <gtest/gtest.h>

#include "mhla/core/cuda.h"
#include "mhla/kernels/grid_conv/grid_conv_job.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

GridConvParams problem(std::int64_t channels, std::int64_t kernel) {
  GridConvParams p;
  p.v = ConstView(nullptr, DType::kBF16, {2, 12, channels});
  p.v.device = 0;
  p.rows = 3, p.columns = 4, p.kernel = kernel;
  return p;
}

TEST(GridConv, SaysWhatItDoesNotTake) {
  GridConvParams p = problem(8, 3);
  p.v.device = kCpu;
  EXPECT_EQ(grid_conv_fit(p), "the kernels are of GPUs");
  p.rows = 5;
  EXPECT_TRUE(has(message_of([&] { grid_conv(p, {}); }), "grid_conv: v has shape [2, 12, 8], expected [B, 5 x 4, C]"));
  if (!cuda_built()) return;
  EXPECT_EQ(grid_conv_fit(problem(8, 3)), "");
  EXPECT_EQ(grid_conv_fit(problem(8, 7)), "a kernel of 7, expected 3 or 5");
  EXPECT_EQ(grid_conv_fit(problem(6, 3)), "6 channels, expected a multiple of 4");
}

TEST(GridConv, PartsFollowTheShapeAlone) {
  EXPECT_EQ(conv_walks(2, 3, 5), 4);     // a band of rows, two strips of columns
  EXPECT_EQ(conv_walks(1, 17, 16), 12);  // three bands, four strips
  EXPECT_EQ(conv_parts(0), 0);
  EXPECT_EQ(conv_parts(4), 1);
  EXPECT_EQ(conv_parts(5), 2);
  EXPECT_EQ(conv_parts(1 << 20), 512);
}

}  // namespace
}  // namespace mhla
