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
  int tile = 0;              // columns, of the kernel for sm_90
  float eps = 0, per_K = 0;  // per_K: 1 / K
  // linear_rows_step: the first `turned` columns, heads of `turn_head`; lines of 128 bytes to bring to the cache.
  const std::byte* next = nullptr;
  int next_lines = 0;
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t cos_stride = 0, sin_stride = 0;
  int turned = 0, turn_head = 0, turned_tiles = 0;
  float per_half = 0;  // 2 / turn_head
  FeatureMap map = FeatureMap::kIdentity;
  bool silu_second = false, silu_done = false;
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

// The kernel for sm_90: one block of threads for every multiprocessor that clusters can fill, with all its weights. An
// H200 holds 30 clusters of four; of eight 15, and one more where two blocks share a multiprocessor. So a tile has as
// few columns, a multiple of 8, as that allows. Bits do not depend on it but for tiles of up to 64 columns.
inline constexpr int kRowsMostTile = 192;
constexpr int rows_most_clusters(int slices) { return slices <= 2 ? 132 / slices : slices <= 4 ? 30 : 16; }
constexpr int rows_tile_sm90(int columns, int turned, int slices, bool pairs) {
  for (int tile = 32; tile < kRowsMostTile; tile += 8) {
    if (rows_tiles(columns, turned, pairs ? tile / 2 : tile).all <= rows_most_clusters(slices)) return tile;
  }
  return kRowsMostTile;
}

// How the sums of a tile are divided among the blocks of its cluster: `fours` fours of columns for each, and with pairs
// the other halves of these. A block of sums goes from each to each: [R][pitch] floats, then the squares of R rows.
struct RowsExchange {
  int fours = 0, pitch = 0, block = 0;  // floats; a pitch of 4 or 12 modulo 16 keeps lanes in different banks
};
constexpr RowsExchange rows_exchange(int rows, int outputs, bool pairs, int slices) {
  const int fours = (outputs / 4 + slices - 1) / slices, width = fours * (pairs ? 8 : 4);
  const int pitch = width % 8 == 4 ? width : width + 4;
  return {fours, pitch, rows * pitch + (rows + 3) / 4 * 4};
}

// Its shared memory, in bytes: rows of x and of weights in panels of 32 columns; where these were, blocks of sums that
// leave and blocks that come; two barriers; sums of squares; gates where heads are normed. A product reads 64 rows of
// weights: a smaller tile has room after it. Of 16 rows sums that come have a place of their own.
struct RowsPlaces {
  int come = 0, barriers = 0, squares = 0, gates = 0, end = 0;
};
constexpr int rows_panels(int slice) { return (slice + 31) / 32; }
constexpr bool rows_come_apart(int rows) { return rows <= 16; }
constexpr RowsPlaces rows_places(int rows, int tile, int slice, int slices, bool gates) {
  const int operands = rows_panels(slice) * (rows + tile) * 64 + (tile < 64 ? (64 - tile) * 64 : 0);
  const int whole = rows_exchange(rows, tile, false, slices).block,
            half = rows_exchange(rows, tile / 2, true, slices).block;
  const int sums = slices * (whole > half ? whole : half) * 4;
  RowsPlaces at;
  at.come = rows_come_apart(rows) && operands > sums ? operands : sums;
  at.barriers = at.come + sums > operands ? at.come + sums : operands;
  at.squares = at.barriers + 16;
  at.gates = at.squares + rows * 4;
  at.end = at.gates + (gates ? rows * rows_panels(slice) * 64 : 0);
  return at;
}

void linear_rows_cuda(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream);
void linear_rows_sm90(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream);

}  // namespace mhla
