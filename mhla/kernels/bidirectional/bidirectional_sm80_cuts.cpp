#include "mhla/kernels/bidirectional/bidirectional_sm80_cuts.h"

namespace mhla::sm80 {
namespace {

constexpr std::int64_t up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

constexpr std::int64_t smallest_factor(std::int64_t x) {
  for (const std::int64_t factor : {2, 3, 5, 7})
    if (x % factor == 0) return factor;
  return 0;
}

}  // namespace

BlockCuts cut_blocks(const Layout& layout, std::int64_t N, std::int64_t M, std::int64_t C) {
  BlockCuts cuts;
  cuts.layout = layout, cuts.M = M, cuts.C = C;
  const bool line = layout.rank == 1;
  const std::array<std::int64_t, 3> grid = line ? std::array<std::int64_t, 3>{1, 1, N} : layout.grid;
  if (N == 0 || C <= kMostBlockTokens) return cuts;
  std::array<std::int64_t, 3> step{};  // tokens of a block per axis
  for (std::size_t axis = 0; axis < 3; ++axis) {
    step[axis] = line ? (axis == 2 ? layout.block_size : 1) : up(grid[axis], layout.blocks[axis]);
    cuts.whole_blocks[axis] = cuts.blocks[axis] = up(grid[axis], step[axis]);
  }
  while (cuts.C > kMostBlockTokens) {
    std::size_t longest = 3;
    for (std::size_t axis = 0; axis < 3; ++axis)
      if (smallest_factor(step[axis]) > 0 && (longest == 3 || step[axis] > step[longest])) longest = axis;
    if (longest == 3) break;
    const std::int64_t factor = smallest_factor(step[longest]), shorter = step[longest] / factor;
    const std::int64_t blocks = up(grid[longest], shorter);
    if (!line && up(grid[longest], blocks) != shorter) break;  // a layout says how many, not how long
    const std::int64_t more = cuts.M / cuts.blocks[longest] * blocks;
    if (more > kMostCutBlocks) break;
    cuts.parts[longest] *= factor, step[longest] = shorter, cuts.blocks[longest] = blocks;
    cuts.M = more, cuts.C = 1;
    for (std::size_t axis = 0; axis < 3; ++axis) cuts.C *= std::min(step[axis], grid[axis]);
  }
  if (line)
    cuts.layout.block_size = step[2];
  else
    cuts.layout.blocks = cuts.blocks;
  return cuts;
}

}  // namespace mhla::sm80
