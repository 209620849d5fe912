// A checked call of linear_rows as the kernel takes it, and how it is cut: K into slices, one for each block of threads
// of a cluster, whose sums are added up in the order of slices; outputs into tiles of columns.
#pragma once

#include "mhla/kernels/linear/linear_rows_step.h"

namespace mhla {

inline constexpr int kRowsSlice = 384;  // of K, at most
inline constexpr int kRowsMostSlices = 8;

// Slices of K: as few as are short enough; they are whole heads where these are normed.
struct RowsCut {
  int slices = 0, slice = 0;  // slice: a multiple of 16; 0 slices: too long
};
constexpr RowsCut rows_cut(std::int64_t K, std::int64_t head) {
  for (int slices = 1; slices <= kRowsMostSlices; slices *= 2) {
    const std::int64_t slice = (K + 16 * slices - 1) / (16 * slices) * 16;
    if (slice > kRowsSlice) continue;
    if (head > 0 && (slice * slices != K || slice % head != 0)) continue;
    return {slices, static_cast<int>(slice)};
  }
  return {};
}

// Shared memory of a block of threads, in bytes: rows of x, then rows of weights, a slice of each; sums of the tile
// take their place when the product is done, and a sum of squares for every row follows.
inline constexpr int kRowsPad = 8;     // elements after a row: eight rows lie in different banks
inline constexpr int kRowsSumPad = 4;  // floats after a row of sums
constexpr int rows_squares_at(int rows, int columns, int slice) {
  const int operands = (rows + columns) * (slice + kRowsPad) * 2, sums = rows * (columns + kRowsSumPad) * 4;
  return operands > sums ? operands : sums;
}
constexpr int rows_bytes(int rows, int columns, int slice) { return rows_squares_at(rows, columns, slice) + rows * 4; }

// Columns of a tile: few where something is added, which is where outputs are few. With SwiGLU half of them are those
// of `second`.
constexpr int rows_tile(RowsAfter after) { return after == RowsAfter::kAdd ? 32 : 96; }

struct LinearRowsJob {
  const void* x = nullptr;
  const void *weight = nullptr, *second = nullptr;  // bf16
  const void *scale = nullptr, *gate = nullptr;     // bf16
  const float* add = nullptr;
  void *out = nullptr, *second_out = nullptr;
  std::int64_t x_stride = 0, weight_stride = 0, second_stride = 0, gate_stride = 0, add_stride = 0, out_stride = 0,
               second_out_stride = 0;  // elements
  int R = 0, K = 0, O = 0, O2 = 0, head = 0, slice = 0;
  float eps = 0;
  // linear_rows_step: the first `turned` columns, heads of `turn_head`; lines of 128 bytes to bring to the cache.
  const std::byte* next = nullptr;
  int next_lines = 0;
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t cos_stride = 0, sin_stride = 0;
  int turned = 0, turn_head = 0;
  FeatureMap map = FeatureMap::kIdentity;
};

inline constexpr int kRowsLine = 128;  // bytes of a cache line

// Tiles of `tile` columns: first those that hold pairs of turned columns, half a tile of each side, then the others.
struct RowsTiles {
  int turned = 0, all = 0;
};
constexpr RowsTiles rows_tiles(int columns, int turned, int tile) {
  const int pairs = (turned + tile - 1) / tile;
  return {pairs, pairs + (columns - turned + tile - 1) / tile};
}

void linear_rows_cuda(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream);

}  // namespace mhla
