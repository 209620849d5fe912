// The layout as kernels compute it, against BlockMap.
#include <gtest/gtest.h>

#include "mhla/kernels/common/cuda/layout.cuh"
#include "mhla/testing/random.h"

namespace mhla::cuda {
namespace {

void expect_same(const Layout& layout, std::int64_t N) {
  const BlockMap map(layout, N);
  const DeviceLayout device(layout, map.largest());
  std::int64_t tokens = 0;
  for (std::int64_t block = 0; block < map.blocks(); ++block) {
    const BlockTokens at = device.tokens(block, N);
    ASSERT_EQ(at.size, map.size(block)) << describe(layout) << " N=" << N << " block " << block;
    std::uint32_t place = 0;
    for (std::int64_t run = 0; run < map.runs(block); ++run) {
      for (std::int64_t w = 0; w < map.run_length(block); ++w, ++place) {
        ASSERT_EQ(at.token(place), map.run_start(block, run) + w)
            << describe(layout) << " N=" << N << " block " << block << " place " << place;
      }
    }
    tokens += place;
  }
  ASSERT_EQ(tokens, N);
}

TEST(CudaLayout, FastDivisorDivides) {
  Random random(1);
  for (const std::int64_t d : {1, 2, 3, 5, 7, 16, 17, 63, 64, 65, 1000, 65535, 65537, 1 << 20, (1 << 30) + 1}) {
    const FastDivisor divisor(d);
    const auto check = [&](std::int64_t n) {
      if (n < 0 || n >= kMaxBlockTokens) return;
      ASSERT_EQ(divisor.divide(static_cast<std::uint32_t>(n)), n / d) << n << " / " << d;
    };
    for (std::int64_t n = 0; n < 1000; ++n) check(n);
    for (std::int64_t times = kMaxBlockTokens / d; times > kMaxBlockTokens / d - 3; --times) {
      for (std::int64_t off = -1; off <= 1; ++off) check(times * d + off);
    }
    check(kMaxBlockTokens - 1);
    for (int repeat = 0; repeat < 2000; ++repeat) check(random.below(kMaxBlockTokens));
  }
}

TEST(CudaLayout, LineMatchesBlockMap) {
  for (std::int64_t N = 1; N < 40; ++N) {
    for (std::int64_t C = 1; C < 45; ++C) expect_same(Layout::line(C), N);
  }
}

TEST(CudaLayout, GridsMatchBlockMap) {
  Random random(2);
  for (int repeat = 0; repeat < 500; ++repeat) {
    std::array<std::int64_t, 3> grid{}, blocks{};
    for (int axis = 0; axis < 3; ++axis) {
      grid[axis] = 1 + random.below(9);
      const std::int64_t step = 1 + random.below(grid[axis]);
      blocks[axis] = (grid[axis] + step - 1) / step;
    }
    expect_same(Layout::grid3d(grid, blocks), grid[0] * grid[1] * grid[2]);
    expect_same(Layout::grid2d(grid[1], grid[2], blocks[1], blocks[2]), grid[1] * grid[2]);
  }
}

TEST(CudaLayout, SequencesOfOtherLengthsShareALayout) {
  const DeviceLayout device(Layout::line(16), 16);
  EXPECT_EQ(device.tokens(0, 5).size, 5u);
  EXPECT_EQ(device.tokens(2, 40).size, 8u);
  EXPECT_EQ(device.tokens(2, 40).token(7), 39);
}

}  // namespace
}  // namespace mhla::cuda
