// Which problems the candidate `sm90` takes: those of `sm80`, on a Hopper card.
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm80_plan.h"
#include "mhla/kernels/common/cuda/sm80_fit.h"

namespace mhla {

std::string bidirectional_fit_sm90(const Problem& p) {
  const std::string reason = sm80::fit_hopper(p);
  return reason.empty() ? sm80::fit_problem(p) : reason;
}

}  // namespace mhla
