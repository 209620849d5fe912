#include "mhla/kernels/common/layout.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/view.h"

namespace mhla {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

std::string times(const std::array<std::int64_t, 3>& sizes, int rank) {
  std::string text;
  for (int axis = 3 - rank; axis < 3; ++axis) text += str(text.empty() ? "" : "x", sizes[axis]);
  return text;
}

// Block counts that leave no block empty: ceil(grid / step) for some step.
bool fills(std::int64_t grid, std::int64_t blocks) { return ceil_div(grid, ceil_div(grid, blocks)) == blocks; }

// The two step sizes around grid / blocks give the counts that work on either side of `blocks`.
std::int64_t nearest_count(std::int64_t grid, std::int64_t blocks) {
  const std::int64_t step = ceil_div(grid, std::min(blocks, grid));
  const std::int64_t below = ceil_div(grid, step);
  if (step == 1) return below;
  const std::int64_t above = ceil_div(grid, step - 1);
  return blocks - below <= above - blocks ? below : above;
}

}  // namespace

Layout Layout::line(std::int64_t block_size) {
  Layout layout;
  layout.rank = 1;
  layout.block_size = block_size;
  return layout;
}

Layout Layout::grid2d(std::int64_t rows, std::int64_t columns, std::int64_t block_rows, std::int64_t block_columns) {
  Layout layout;
  layout.rank = 2;
  layout.grid = {1, rows, columns};
  layout.blocks = {1, block_rows, block_columns};
  return layout;
}

Layout Layout::grid3d(std::array<std::int64_t, 3> grid, std::array<std::int64_t, 3> blocks) {
  Layout layout;
  layout.rank = 3;
  layout.grid = grid;
  layout.blocks = blocks;
  return layout;
}

std::string describe(const Layout& layout) {
  if (layout.rank == 1) return str("1d C=", layout.block_size);
  return str(layout.rank, "d grid ", times(layout.grid, layout.rank), " blocks ", times(layout.blocks, layout.rank));
}

void check_layout(const Layout& layout, std::int64_t N, const char* entry) {
  if (layout.rank < 1 || layout.rank > 3) fail(entry, ": layout has ", layout.rank, " axes, expected 1, 2 or 3");
  if (layout.rank == 1) {
    if (layout.block_size < 1) fail(entry, ": layout block_size is ", layout.block_size, ", expected at least 1");
    return;
  }
  const std::int64_t product = checked_product({layout.grid[0], layout.grid[1], layout.grid[2]}, "layout grid");
  if (product != N)
    fail(entry, ": layout grid ", times(layout.grid, layout.rank), " has ", product, " tokens, expected N = ", N);
  if (layout.rank == 2 && (layout.grid[0] != 1 || layout.blocks[0] != 1)) {
    fail(entry, ": layout of 2 axes has grid[0] = ", layout.grid[0], " and blocks[0] = ", layout.blocks[0],
         ", expected 1 and 1");
  }
  for (int axis = 3 - layout.rank; axis < 3; ++axis) {
    const std::int64_t grid = layout.grid[axis], blocks = layout.blocks[axis];
    if (blocks < 1) fail(entry, ": layout blocks ", times(layout.blocks, layout.rank), " has a count below 1");
    if (grid == 0) continue;
    if (blocks > grid || !fills(grid, blocks)) {
      fail(entry, ": layout axis ", axis - (3 - layout.rank), " cuts ", grid, " tokens into ", blocks,
           " blocks, which leaves a block empty; the nearest count that works is ", nearest_count(grid, blocks));
    }
  }
}

BlockMap::BlockMap(const Layout& layout, std::int64_t N) : N_(N) {
  if (layout.rank == 1) {
    grid_ = {1, 1, N};
    blocks_ = {1, 1, ceil_div(N, layout.block_size)};
    step_ = {1, 1, layout.block_size};
  } else {
    grid_ = layout.grid;
    blocks_ = layout.blocks;
    for (int axis = 0; axis < 3; ++axis) step_[axis] = std::max<std::int64_t>(1, ceil_div(grid_[axis], blocks_[axis]));
  }
  M_ = blocks_[0] * blocks_[1] * blocks_[2];
  C_ = std::min(step_[0], grid_[0]) * std::min(step_[1], grid_[1]) * std::min(step_[2], grid_[2]);
}

BlockMap::Box BlockMap::box(std::int64_t block) const {
  const std::array<std::int64_t, 3> index{block / (blocks_[1] * blocks_[2]), block / blocks_[2] % blocks_[1],
                                          block % blocks_[2]};
  Box box{};
  for (int axis = 0; axis < 3; ++axis) {
    box.origin[axis] = std::min(index[axis] * step_[axis], grid_[axis]);
    box.extent[axis] = std::min(step_[axis], grid_[axis] - box.origin[axis]);
  }
  return box;
}

std::int64_t BlockMap::size(std::int64_t block) const {
  const Box b = box(block);
  return b.extent[0] * b.extent[1] * b.extent[2];
}

bool BlockMap::equal_blocks() const { return M_ * C_ == N_; }

std::int64_t BlockMap::runs(std::int64_t block) const {
  const Box b = box(block);
  return b.extent[0] * b.extent[1];
}

std::int64_t BlockMap::run_start(std::int64_t block, std::int64_t run) const {
  const Box b = box(block);
  const std::int64_t frame = b.origin[0] + run / b.extent[1], row = b.origin[1] + run % b.extent[1];
  return (frame * grid_[1] + row) * grid_[2] + b.origin[2];
}

std::int64_t BlockMap::run_length(std::int64_t block) const { return box(block).extent[2]; }

}  // namespace mhla
