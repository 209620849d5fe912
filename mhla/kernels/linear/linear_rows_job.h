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

// Where things lie in shared memory, of the kernel for sm_90 (rows_places).
struct RowsPlaces {
  int come = 0, squares = 0, barriers = 0, end = 0;
  int fours = 1, shift = 0;  // fours of rows that a block finishes, a power of two, and its logarithm
  bool apart = false;
};

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
  RowsPlaces places;         // likewise
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

// The kernel for sm_90 has what a layer of a language model asks for. Other pairs are left to that of all cards: each
// one would be 12 kernels more to compile, or 24.
constexpr bool rows_on_sm90(RowsBefore before, RowsAfter after) {
  switch (before) {
    case RowsBefore::kPlain: return after == RowsAfter::kAdd;     // down
    case RowsBefore::kNorm: return after != RowsAfter::kAdd;      // q, k, v and gate; SwiGLU
    case RowsBefore::kHeadNorm: return after == RowsAfter::kAdd;  // output projection
  }
  return false;
}

// Its tiles: one block of threads for every multiprocessor that clusters can fill, with all its weights. An H200 holds
// 30 clusters of four; of eight 15, and one more where two blocks share a multiprocessor. So a tile has as few columns,
// a multiple of 8, as that allows. Bits do not depend on it.
inline constexpr int kRowsMostTile = 192;
constexpr int rows_most_clusters(int slices) { return slices <= 2 ? 132 / slices : slices <= 4 ? 30 : 16; }
// Up to 16 rows of x are soon there, and fewer blocks are faster; of pairs, which have the most columns, two clusters
// more (mhla_340m with one sequence: 385 us a step instead of 420, with the next kernel let in as rows_opens has it).
inline constexpr int kRowsFew = 16;
constexpr int rows_tile_sm90(int rows, int columns, int turned, int slices, bool pairs) {
  const bool few = rows <= kRowsFew;
  const int clusters = rows_most_clusters(slices) + (few && pairs && slices == 4 ? 2 : 0);
  for (int tile = !few ? 32 : slices > 4 ? 96 : 64; tile < kRowsMostTile; tile += 8) {
    if (rows_tiles(columns, turned, pairs ? tile / 2 : tile).all <= clusters) return tile;
  }
  return kRowsMostTile;
}

// When blocks of the next kernel may come: their weights or states share the way to the multiprocessor with the rows of
// this one. At once; where q and k of few rows are made, before the operator, when these rows are there; behind down of
// many rows after the product (mhla_340m with 64 sequences: 805 us a step instead of 832).
enum class RowsOpen : std::uint8_t { kAtOnce, kWithRows, kWithSums };
constexpr RowsOpen rows_opens(int rows, RowsBefore before, bool turned) {
  if (rows <= kRowsFew && turned) return RowsOpen::kWithRows;
  return rows > 32 && before == RowsBefore::kPlain ? RowsOpen::kWithSums : RowsOpen::kAtOnce;
}

// Panels of 32 columns that a slice takes: the kernel for sm_90 knows two numbers of them, and fills up with zeros.
constexpr int rows_panels(int slice) { return slice <= 256 ? 8 : 12; }
static_assert(rows_panels(kRowsSlice) * 32 >= kRowsSlice);

// Its shared memory, in bytes: rows of x and of weights in panels; sums that come from the blocks of the cluster, for
// `fours` fours of rows in each; squares that come with them; two barriers. A product reads 64 rows of weights: a
// smaller tile has room after it. Sums have a place of their own (`apart`) where a block of the next kernel still finds
// room beside this one; else they take that of the operands, and the blocks wait for each other first.
constexpr RowsPlaces rows_places(int rows, int tile, int slice, int slices) {
  constexpr int kFewSums = 16 << 10, kFewOperands = 88 << 10;
  const int operands = rows_panels(slice) * (rows + tile) * 64 + (tile < 64 ? (64 - tile) * 64 : 0);
  RowsPlaces at;
  at.fours = rows / 4 > slices ? rows / 4 / slices : 1;
  while (1 << at.shift < at.fours) ++at.shift;
  const int sums = slices * tile * at.fours * 16;
  at.apart = sums < kFewSums || operands < kFewOperands;
  at.come = at.apart ? operands : 0;
  at.squares = at.come + sums > operands ? at.come + sums : operands;
  at.barriers = at.squares + slices * at.fours * 16;
  at.end = at.barriers + 16;
  return at;
}

void linear_rows_cuda(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream);
void linear_rows_sm90(const LinearRowsParams& params, const LinearRowsJob& job, int slices, void* stream);

}  // namespace mhla
