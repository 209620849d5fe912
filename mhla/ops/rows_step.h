// linear_rows as a part of a decode step: q and k may leave it mapped and turned like those of ops::rope, and weights
// of a later kernel come to the cache meanwhile (mhla/kernels/linear/linear_rows_step.h). For inference on a GPU only.
#pragma once

#include "mhla/ops/ops.h"

namespace mhla::ops {

struct RowsTurnInputs {
  RopeTable table;           // [B, 1, D / 2], or [1, D / 2] for all rows
  std::int64_t columns = 0;  // of q and k together; 0: nothing is turned
  std::int64_t head = 0;     // D
  FeatureMap feature_map = FeatureMap::kIdentity;
};

struct RowsStepInputs {
  RowsTurnInputs turn;
  at::Tensor next;           // weights
  bool silu_second = false;  // kStore: second = silu(y')
  bool silu_done = false;    // kHeadNorm: gate is such a one
};

bool rows_step_fit(const RowsInputs& inputs, const RowsStepInputs& step);
RowsOutputs linear_rows_step(const RowsInputs& inputs, const RowsStepInputs& step);

}  // namespace mhla::ops
