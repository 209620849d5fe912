// Linear layers of a few rows on a GPU with what stands around them in a decode step, in one kernel each:
//   a = x                                       kPlain      x bf16
//   a = x / sqrt(mean(x^2) + eps) * scale       kNorm       x f32, over the whole row
//   a = the same per head of x, * silu(gate)    kHeadNorm   x bf16, over `head` columns at a time
//   y = a weight^T, and second^T where given
//   out = y, second_out = y'                    kStore      bf16
//   out = add + y                               kAdd        f32
//   out = silu(y) * y'                          kSwiglu     bf16
// Products take operands rounded to bf16; sums, norms and everything after them are f32. A row has the same bits
// whatever other rows there are: sums run in an order that follows from the sizes of the weights.
#pragma once

#include <string>

#include "mhla/core/view.h"
#include "mhla/kernels/common/options.h"

namespace mhla {

enum class RowsBefore : std::uint8_t { kPlain, kNorm, kHeadNorm };
enum class RowsAfter : std::uint8_t { kStore, kAdd, kSwiglu };

struct LinearRowsParams {
  RowsBefore before = RowsBefore::kPlain;
  RowsAfter after = RowsAfter::kStore;
  ConstView x;             // [R, K]; last stride 1, like all of these
  ConstView weight;        // [O, K] bf16
  ConstView maybe_second;  // [O2, K] bf16; kSwiglu: O2 = O; not with kAdd
  ConstView maybe_scale;   // [K] or [head] bf16, of a norm
  ConstView maybe_gate;    // [R, K] bf16, kHeadNorm
  ConstView maybe_add;     // [R, O] f32, kAdd; out may be the same memory
  std::int64_t head = 0;   // kHeadNorm: K is a multiple of it
  double eps = 1e-6;
};

inline constexpr std::int64_t kMostRows = 64;

// Why the kernel does not take this problem, or "": a device from compute capability 9.0 on, 1 to 64 rows, K a multiple
// of 8 and up to 3,072, rows that begin at multiples of 16 bytes.
std::string linear_rows_fit(const LinearRowsParams& params);

void linear_rows(const LinearRowsParams& params, const View& out, const View& maybe_second_out = {},
                 const RunOptions& run = {});

}  // namespace mhla
