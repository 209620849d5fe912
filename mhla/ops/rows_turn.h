// linear_rows whose first outputs are q and k, which leave it mapped and turned like those of ops::rope
// (mhla/kernels/linear/linear_rows_turn.h). For inference on a GPU only.
#pragma once

#include "mhla/ops/ops.h"

namespace mhla::ops {

struct RowsTurnInputs {
  RopeTable table;           // [B, 1, D / 2], or [1, D / 2] for all rows
  std::int64_t columns = 0;  // of q and k together
  std::int64_t head = 0;     // D
  FeatureMap feature_map = FeatureMap::kIdentity;
};

bool turned_rows_fit(const RowsInputs& inputs, const RowsTurnInputs& turn);
RowsOutputs linear_rows_turned(const RowsInputs& inputs, const RowsTurnInputs& turn);

}  // namespace mhla::ops
