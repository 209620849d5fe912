// linear_rows as a part of a decode step.
// - Its first columns may be q and k: what comes out of them is mapped and turned as rope() does it with the rounded
//   product (rope.h, halves), bit for bit, in the same kernel.
// - Gates may leave the kernel that makes them as silu(gate), so that the blocks that norm heads with them do not all
//   compute it again: one rounding to bf16 either way, after silu instead of before.
// - Weights of a later kernel may be brought to the second-level cache meanwhile.
#pragma once

#include "mhla/kernels/linear/linear_rows.h"

namespace mhla {

struct RowsTurn {
  ConstView cos, sin;        // [R, head / 2] f32; last stride 1
  std::int64_t columns = 0;  // of out that are turned, the first ones: whole heads; 0: none
  std::int64_t head = 0;     // D; pair j is (j, j + D / 2)
  FeatureMap feature_map = FeatureMap::kIdentity;
};

struct RowsStep {
  RowsTurn turn;
  bool silu_second = false;  // kStore: second_out = silu(y')
  bool silu_done = false;    // kHeadNorm: gate is such a one
  ConstView maybe_next;      // [O, K], read by nobody: not brought anywhere where it is not contiguous
};

// Why the kernel does not take this problem, or "": what linear_rows_fit() says; to be turned kNorm with kStore, and
// heads that are multiples of 8.
std::string linear_rows_step_fit(const LinearRowsParams& params, const RowsStep& step);

void linear_rows_step(const LinearRowsParams& params, const RowsStep& step, const View& out,
                      const View& maybe_second_out = {}, const RunOptions& run = {});

}  // namespace mhla
