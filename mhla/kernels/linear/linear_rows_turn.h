// linear_rows whose first columns are q and k: what comes out of them is mapped and turned as rope() does it with the
// rounded product (rope.h, halves), bit for bit, in the same kernel.
#pragma once

#include "mhla/kernels/linear/linear_rows.h"

namespace mhla {

struct RowsTurn {
  ConstView cos, sin;        // [R, head / 2] f32; last stride 1
  std::int64_t columns = 0;  // of out that are turned, the first ones: whole heads
  std::int64_t head = 0;     // D; pair j is (j, j + D / 2)
  FeatureMap feature_map = FeatureMap::kIdentity;
};

// Why the kernel does not take this problem, or "": what linear_rows_fit() says; kNorm with kStore, heads that are
// multiples of 8.
std::string linear_rows_turn_fit(const LinearRowsParams& params, const RowsTurn& turn);

void linear_rows_turned(const LinearRowsParams& params, const RowsTurn& turn, const View& out,
                        const View& maybe_second_out = {}, const RunOptions& run = {});

}  // namespace mhla
