// Plans of dmix on Hopper (sm90_mix_product.cuh): squares of 64 x 64 blocks, what lies in shared memory, and how
// warpgroups share the squares. Pure functions, tested without a GPU.
#pragma once

#include "mhla/kernels/common/cuda/sm80_plan.h"

namespace mhla::sm90 {

// Squares of a warpgroup, 32 registers each: panels of dS~ (rows) and of S (columns) in a stage.
struct MixShare {
  int count, row[4], column[4];
};

// A block of threads multiplies `rows` panels of 64 blocks of dS~ by `columns` panels of S. `kinds` blocks of threads
// have the same strips and share the rows of dS~.
struct MixProductPlan {
  int rows, columns, readers, stages, kinds;
  MixShare shares[3];
  int reader_registers, last_registers;  // of the last reader
  bool back = false;                     // dS = mix^T dS~ too, in place of dS~, a reader its row of squares

  static constexpr int kPanel = 8192, kCopyRegisters = 56;  // 64 blocks, 64 values
  constexpr int threads() const { return (1 + readers) * 128; }
  constexpr int sums_at() const { return columns * kPanel; }  // dS~ in a stage; S before it
  constexpr int stage_bytes() const { return (rows + columns) * kPanel; }
  constexpr int mix_at() const { return stages * stage_bytes(); }  // mix^T, as panels
  constexpr int mix_bytes() const { return back ? rows * rows * kPanel : 0; }
  constexpr int ring_at() const { return mix_at() + mix_bytes(); }
  constexpr int bytes() const { return ring_at() + 16 * stages; }
};
// 65 to 128 blocks; 129 to 256, the upper and the lower half of the rows; the same in the causal form, which has ten of
// 16 squares; 65 to 128 blocks with dS.
enum MixProduct { kMixSquares, kMixHalves, kMixTriangle, kMixSquaresBack };
inline constexpr MixProductPlan kMixProductPlans[] = {
    {2, 2, 2, 6, 1, {{2, {0, 0}, {0, 1}}, {2, {1, 1}, {0, 1}}}, 216, 216},
    {2, 4, 3, 4, 2, {{3, {0, 0, 0}, {0, 1, 2}}, {3, {1, 1, 1}, {0, 1, 2}}, {2, {0, 1}, {3, 3}}}, 152, 144},
    {4, 4, 3, 3, 1, {{3, {3, 3, 3}, {0, 1, 2}}, {3, {2, 2, 3}, {0, 1, 3}}, {4, {0, 1, 1, 2}, {0, 0, 1, 2}}}, 136, 176},
    {2, 2, 2, 6, 1, {{2, {0, 0}, {0, 1}}, {2, {1, 1}, {0, 1}}}, 216, 216, true}};

constexpr MixProduct mix_product(std::int64_t M, bool causal) {
  return M <= 128 ? kMixSquares : causal ? kMixTriangle : kMixHalves;
}
// Whether one pass over dS~ makes both, dmix and dS.
constexpr bool mix_product_back(std::int64_t M, bool causal) { return !causal && M > 64 && M <= 128; }
// In how many parts, or 0: not these kernels. One block of threads on each of the 132 multiprocessors of a card. Fewer
// chunks are mixed both ways at once in the causal form, with dmix.
constexpr std::int64_t mix_product_splits(std::int64_t M, std::int64_t matrices, bool causal) {
  if (M > 256 || M <= (causal ? 128 : 64)) return 0;
  const std::int64_t blocks = 132 / kMixProductPlans[mix_product(M, causal)].kinds;
  return matrices < blocks ? blocks / matrices : 1;
}

}  // namespace mhla::sm90
