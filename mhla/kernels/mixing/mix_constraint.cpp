// The constraint on a trained mixing matrix: clip, mask, renormalise, in this order.
#include <algorithm>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/kernels/mixing/mix_matrix.h"
#include "mhla/kernels/mixing/mixing.h"

namespace mhla {
namespace {

constexpr const char* kConstrain = "constrain_mix";

void check_bounds(const MixConstraint& constraint) {
  const double lo = constraint.lo;
  const double hi = constraint.hi;
  if (!std::isfinite(lo) || !std::isfinite(hi) || !(lo <= hi)) {
    fail(kConstrain, ": bounds are [", lo, ", ", hi, "], expected finite lo <= hi");
  }
  if (constraint.renormalize_rows && !(lo >= 0.0)) {
    fail(kConstrain, ": lo is ", lo, " with renormalize_rows, expected at least 0 (a row of mixed signs may sum to 0)");
  }
}

}  // namespace

std::int64_t constrain_mix(const MixConstraint& constraint, View mix) {
  check_bounds(constraint);
  check_mix_output(mix, kConstrain, "mix");
  MixMatrix matrix = load_mix(mix, kConstrain, "mix");
  check_finite(matrix, constraint.causal, kConstrain, "mix");

  // Bounds as the view can hold them, so that a second call finds nothing to clip.
  const bool narrow = mix.dtype == DType::kF32;
  const double lo = narrow ? static_cast<float>(constraint.lo) : constraint.lo;
  const double hi = narrow ? static_cast<float>(constraint.hi) : constraint.hi;
  std::int64_t clipped = 0;
  for (std::int64_t h = 0; h < matrix.heads; ++h) {
    for (std::int64_t i = 0; i < matrix.rows; ++i) {
      double* row = matrix.row(h, i);
      const std::int64_t end = constraint.causal ? i + 1 : matrix.rows;
      double sum = 0.0;
      for (std::int64_t b = 0; b < end; ++b) {
        const double kept = std::clamp(row[b], lo, hi);
        clipped += kept != row[b] ? 1 : 0;
        row[b] = kept;
        sum += kept;
      }
      std::fill(row + end, row + matrix.rows, 0.0);
      if (!constraint.renormalize_rows) continue;
      if (!(sum > 0.0)) {
        fail(kConstrain, ": row ", i, " of head ", h, " sums to ", sum,
             " after clipping, expected a positive sum to renormalise");
      }
      for (std::int64_t b = 0; b < end; ++b) row[b] /= sum;
    }
  }
  store_mix(matrix, mix);
  return clipped;
}

}  // namespace mhla
