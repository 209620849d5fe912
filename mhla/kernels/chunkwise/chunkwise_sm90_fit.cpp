// Which problems the `sm90` candidate takes. What it leaves to `cuda`: f32 and f16, packed sequences, q_den and k_den,
// more than 1024 chunks, rows that 16-byte loads do not fit.
#include "mhla/core/error.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_sm90_plan.h"
#include "mhla/kernels/common/cuda/sm90_fit.h"

namespace mhla {

std::string sm90::fit_causal_problem(const Problem& p) {
  const std::int64_t parts = column_parts(p.E);
  if (parts == 0) return str("E = ", p.E, ": no multiple of 8");
  return fit_common(p, p.E / parts);
}

std::string chunkwise_fit_sm90(const Problem& p) {
  const std::string reason = sm90::fit_device(p);
  return reason.empty() ? sm90::fit_causal_problem(p) : reason;
}

}  // namespace mhla
