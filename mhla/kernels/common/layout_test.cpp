// Blocks of a token grid: every token in exactly one block, in the order of the definition.
#include "mhla/kernels/common/layout.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "mhla/core/error.h"
#include "mhla/testing/case_gen.h"

namespace mhla {
namespace {

const bool kSeeded = fix_seed();

std::vector<std::vector<std::int64_t>> blocks_of(const Layout& layout, std::int64_t N) {
  const BlockMap map(layout, N);
  std::vector<std::vector<std::int64_t>> blocks(static_cast<std::size_t>(map.blocks()));
  for (std::int64_t block = 0; block < map.blocks(); ++block) {
    for (std::int64_t run = 0; run < map.runs(block); ++run) {
      for (std::int64_t w = 0; w < map.run_length(block); ++w)
        blocks[static_cast<std::size_t>(block)].push_back(map.run_start(block, run) + w);
    }
    EXPECT_EQ(map.size(block), static_cast<std::int64_t>(blocks[static_cast<std::size_t>(block)].size()));
  }
  return blocks;
}

using Blocks = std::vector<std::vector<std::int64_t>>;

TEST(Layout, Line) {
  EXPECT_EQ(blocks_of(Layout::line(3), 7), (Blocks{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(blocks_of(Layout::line(3), 3), (Blocks{{0, 1, 2}}));
  EXPECT_EQ(blocks_of(Layout::line(8), 2), (Blocks{{0, 1}}));
  EXPECT_EQ(blocks_of(Layout::line(8), 0), Blocks{});
}

TEST(Layout, Grid) {
  //  0  1  2 |  3  4
  //  5  6  7 |  8  9
  // ---------+------
  // 10 11 12 | 13 14
  EXPECT_EQ(blocks_of(Layout::grid2d(3, 5, 2, 2), 15),
            (Blocks{{0, 1, 2, 5, 6, 7}, {3, 4, 8, 9}, {10, 11, 12}, {13, 14}}));
  EXPECT_EQ(blocks_of(Layout::grid3d({2, 2, 2}, {1, 2, 1}), 8), (Blocks{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(blocks_of(Layout::grid3d({2, 2, 2}, {2, 1, 2}), 8), (Blocks{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

// Token (r, c) of a grid of width W in windows of p x p: block (r/p)(W/p) + c/p, position (r%p)p + c%p.
TEST(Layout, AgreesWithTheFormulaOfSquareWindows) {
  constexpr std::int64_t kWidth = 12, kRows = 8, kWindow = 4;
  const Blocks blocks = blocks_of(Layout::grid2d(kRows, kWidth, 2, 3), kRows * kWidth);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kWidth; ++c) {
      const std::int64_t block = r / kWindow * (kWidth / kWindow) + c / kWindow;
      const std::int64_t place = r % kWindow * kWindow + c % kWindow;
      EXPECT_EQ(blocks[block][place], r * kWidth + c);
    }
  }
}

RC_GTEST_PROP(Layout, EveryTokenInExactlyOneBlock, ()) {
  Case c;
  case_gen::layout(c);
  check_layout(c.layout, c.N, "test");
  const BlockMap map(c.layout, c.N);
  std::vector<int> seen(static_cast<std::size_t>(c.N), 0);
  std::int64_t largest = 0, smallest = c.N;
  for (const auto& block : blocks_of(c.layout, c.N)) {
    const auto size = static_cast<std::int64_t>(block.size());
    RC_ASSERT(size > 0);
    largest = std::max(largest, size), smallest = std::min(smallest, size);
    for (const std::int64_t token : block) ++seen.at(static_cast<std::size_t>(token));
  }
  for (const int count : seen) RC_ASSERT(count == 1);
  RC_ASSERT(map.largest() >= largest);
  RC_ASSERT(map.equal_blocks() == (largest == smallest));
}

TEST(Layout, Describe) {
  EXPECT_EQ(describe(Layout::line(64)), "1d C=64");
  EXPECT_EQ(describe(Layout::grid2d(16, 8, 4, 2)), "2d grid 16x8 blocks 4x2");
  EXPECT_EQ(describe(Layout::grid3d({2, 3, 4}, {1, 3, 2})), "3d grid 2x3x4 blocks 1x3x2");
}

// A refused count comes with one that works, as near as possible.
TEST(Layout, NearestCountThatWorks) {
  for (std::int64_t grid = 1; grid <= 24; ++grid) {
    for (std::int64_t blocks = 1; blocks <= 30; ++blocks) {
      const auto works = [&](std::int64_t count) {
        if (count < 1 || count > grid) return false;
        const std::int64_t step = (grid + count - 1) / count;
        return (grid + step - 1) / step == count;
      };
      std::string message;
      try {
        check_layout(Layout::grid2d(1, grid, 1, blocks), grid, "test");
      } catch (const Error& error) {
        message = error.what();
      }
      ASSERT_EQ(message.empty(), works(blocks)) << grid << " " << blocks;
      if (message.empty()) continue;
      const std::int64_t nearest = std::stoll(message.substr(message.rfind(' ')));
      EXPECT_TRUE(works(nearest)) << message;
      for (std::int64_t count = 1; count <= grid; ++count) {
        EXPECT_TRUE(!works(count) || std::abs(count - blocks) >= std::abs(nearest - blocks)) << message;
      }
    }
  }
}

}  // namespace
}  // namespace mhla
