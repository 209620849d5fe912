// Which problems the candidate `sm90` takes: those of `sm80`, on a Hopper card; and which go over slices.
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_sm80_plan.h"
#include "mhla/kernels/chunkwise/chunkwise_sm90_slices_plan.h"
#include "mhla/kernels/common/cuda/sm80_fit.h"
#include "mhla/kernels/common/problem.h"

namespace mhla {

bool sm90::over_slices(const Problem& p) {
  // Two warps map the keys: elu1 took 1.48 ms at lm_2048 where three phases take 0.78.
  if (p.feature_map == FeatureMap::kElu1) return false;
  return takes_slices(padded_size(p.D), padded_columns(p.E), p.layout.block_size, p.L, p.extend, p.normalized());
}

std::string chunkwise_fit_sm90(const Problem& p) {
  const std::string reason = sm80::fit_hopper(p);
  return reason.empty() ? sm80::fit_causal_problem(p) : reason;
}

}  // namespace mhla
