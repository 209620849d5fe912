// Which problems the candidates `sm80` and `sm90` take. What they leave to `cuda`: f32 and f16, packed sequences, the
// official normaliser, heads of more than 128, a mix per head with shared kv heads.
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_sm80_plan.h"
#include "mhla/kernels/common/cuda/sm80_fit.h"

namespace mhla {

std::string sm80::fit_problem(const Problem& p) {
  if (p.normalizer == Normalizer::kOfficial) return "normalizer official";
  if (p.maybe_cu_seqlens.given()) return "cu_seqlens";
  return fit_common(p, padded_size(p.E));
}

std::string bidirectional_fit_sm80(const Problem& p) {
  const std::string reason = sm80::fit_device(p);
  return reason.empty() ? sm80::fit_problem(p) : reason;
}

}  // namespace mhla
