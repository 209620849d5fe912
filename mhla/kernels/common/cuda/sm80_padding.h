// Problems whose rows 16-byte loads do not fit: D or E that are no multiples of 8, strides or addresses in between.
// Their tensors are copied to rows that do, phi of the features on the way and zeros behind them, and the results are
// copied back, gradients through the slope of the map. The kernels see the padded sizes and the identity. That costs
// one more pass over every tensor: about the time of the operator again where memory bounds it.
#pragma once

#include <vector>

#include "mhla/core/workspace.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm80 {

// Whether a problem takes copies. In sm80_fit.cpp.
bool needs_padding(const Problem& problem);

// [B, N, heads, columns] in memory and its rows of `padded` values.
struct PaddedTensor {
  const void* maybe_features = nullptr;  // of a gradient: what the map took, strides as below
  std::int64_t feature_strides[3] = {};
  void* tensor = nullptr;
  std::int64_t strides[3] = {};
  void* rows = nullptr;  // contiguous
  std::int64_t row_count = 0, tokens = 0, heads = 0, columns = 0, padded = 0;
  FeatureMap map = FeatureMap::kIdentity;
};

class Padding {
 public:
  Padding(const Problem& problem, Workspace& workspace);  // over a counting workspace only sizes are taken
  [[nodiscard]] const Problem& inner() const { return inner_; }
  void copy_in() const;
  void copy_out() const;

 private:
  ConstView input(const ConstView& x, std::int64_t padded, FeatureMap map, Workspace& ws, const char* name);
  View output(const View& x, std::int64_t padded, const ConstView& maybe_features, Workspace& ws, const char* name);

  Problem inner_;
  FeatureMap map_;
  std::vector<PaddedTensor> in_, out_;
};

// run(problem), or with copies around it. `copies`: also where rows fit, for kernels that cannot take their strides.
template <class F>
void run_padded(const Problem& problem, Workspace& workspace, const F& run, bool copies = false) {
  if (!copies && !needs_padding(problem)) return run(problem);
  const Padding padding(problem, workspace);
  if (!workspace.counting()) padding.copy_in();
  run(padding.inner());
  if (!workspace.counting()) padding.copy_out();
}

}  // namespace mhla::sm80
