// The blocks of common/layout.h as arithmetic that a kernel can do: place w of a block to its token in raster order,
// without a table. Plain functions of host and device, so the CPU tests walk them against BlockMap.
#pragma once

#include <cstdint>

#include "mhla/kernels/common/layout.h"

#ifdef __CUDACC__
#define MHLA_HOST_DEVICE __host__ __device__
#else
#define MHLA_HOST_DEVICE
#endif

namespace mhla::cuda {

inline constexpr std::int64_t kMaxBlockTokens = std::int64_t{1} << 31;  // places in a block and tokens of a grid: below

// n / divisor for n below 2^31 by one multiplication: with c = ceil(log2 divisor) and p = 31 + c the multiplier
// ceil(2^p / divisor) fits 32 bits, and its error times n stays below 2^p / divisor.
struct FastDivisor {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = std::uint32_t{1} << 31;
  std::uint32_t shift = 31;

  FastDivisor() = default;
  explicit FastDivisor(std::int64_t by) : divisor(static_cast<std::uint32_t>(by)) {
    while ((std::uint64_t{1} << (shift - 31)) < divisor) ++shift;
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  MHLA_HOST_DEVICE std::uint32_t divide(std::uint32_t n) const {
    return static_cast<std::uint32_t>((std::uint64_t{n} * multiplier) >> shift);
  }
};

// One block of a sequence: a box of the grid, walked row-major.
struct BlockTokens {
  std::int64_t origin;        // token of place 0, counted from the start of the sequence
  std::int64_t row_stride;    // tokens from one row of the grid to the next
  std::int64_t frame_stride;  // and from one frame to the next
  FastDivisor columns, rows;  // extents of the box
  std::uint32_t size;         // places in the block

  MHLA_HOST_DEVICE std::int64_t token(std::uint32_t place) const {
    if (size <= columns.divisor) return origin + place;  // one run, as in 1D
    const std::uint32_t line = columns.divide(place), frame = rows.divide(line);
    return origin + static_cast<std::int64_t>(frame) * frame_stride +
           static_cast<std::int64_t>(line - frame * rows.divisor) * row_stride + (place - line * columns.divisor);
  }
};

struct DeviceLayout {
  std::int64_t step[3] = {1, 1, 1};    // tokens per block and axis
  std::int64_t grid[3] = {1, 1, 1};    // 2D and 3D: tokens per axis
  std::int64_t blocks[3] = {1, 1, 1};  // 2D and 3D: blocks per axis
  FastDivisor columns[2], rows[2];     // extents of an inner block, of the last one
  FastDivisor per_row, per_frame;      // 2D and 3D: blocks of a row of blocks, rows of blocks of a frame
  bool line = true;                    // 1D: the last block ends with its sequence

  DeviceLayout() = default;
  DeviceLayout(const Layout& layout, std::int64_t C) : line(layout.rank == 1) {
    if (line) {  // a block is one run, so its places are never divided: C is a divisor above all of them
      step[2] = layout.block_size;
      columns[0] = columns[1] = FastDivisor(C);
      return;
    }
    for (int axis = 0; axis < 3; ++axis) {
      grid[axis] = layout.grid[axis];
      blocks[axis] = layout.blocks[axis];
      step[axis] = (grid[axis] + blocks[axis] - 1) / blocks[axis];
    }
    per_row = FastDivisor(blocks[2]), per_frame = FastDivisor(blocks[1]);
    columns[0] = FastDivisor(step[2]), columns[1] = FastDivisor(grid[2] - step[2] * (blocks[2] - 1));
    rows[0] = FastDivisor(step[1]), rows[1] = FastDivisor(grid[1] - step[1] * (blocks[1] - 1));
  }

  // Block `block` of a sequence of `length` tokens.
  MHLA_HOST_DEVICE BlockTokens tokens(std::int64_t block, std::int64_t length) const {
    BlockTokens at{};
    at.row_stride = grid[2], at.frame_stride = grid[1] * grid[2];
    if (line) {
      at.origin = block * step[2];
      const std::int64_t rest = length - at.origin;
      at.size = static_cast<std::uint32_t>(rest < step[2] ? rest : step[2]);
      at.columns = columns[0];
      return at;
    }
    const auto b = static_cast<std::uint32_t>(block);
    const std::uint32_t band = per_row.divide(b), frame = per_frame.divide(band);
    const std::int64_t k = b - band * per_row.divisor, j = band - frame * per_frame.divisor, i = frame;
    at.origin = (i * step[0] * grid[1] + j * step[1]) * grid[2] + k * step[2];
    at.columns = columns[k + 1 == blocks[2]];
    at.rows = rows[j + 1 == blocks[1]];
    const std::int64_t frames = i + 1 == blocks[0] ? grid[0] - i * step[0] : step[0];
    at.size = static_cast<std::uint32_t>(frames * at.rows.divisor * at.columns.divisor);
    return at;
  }
};

}  // namespace mhla::cuda
