// Which problems the candidates `sm80` and `sm90` take, and packed sequences in groups. What they leave to `cuda`: f32
// and f16, q_den and k_den, more than 1024 chunks, keys of more than 128, a mix per head with shared kv heads.
#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_sm80_plan.h"
#include "mhla/kernels/common/cuda/sm80_fit.h"

namespace mhla {

sm80::SequencePlan sm80::sequence_plan(const Problem& p) {
  SequencePlan plan;
  if (!p.maybe_cu_seqlens.given()) {
    plan.groups.push_back({0, p.B, p.M, 0});
    plan.chunks = p.B * p.M;
    return plan;
  }
  for (const Sequence& s : p.sequences) {
    if (s.length > 0) plan.ranges.push_back({s.start, s.length});
  }
  const auto chunks = [&p](const TokenRange& s) { return (s.length - 1) / p.layout.block_size + 1; };
  std::stable_sort(plan.ranges.begin(), plan.ranges.end(),
                   [&](const TokenRange& a, const TokenRange& b) { return chunks(a) > chunks(b); });
  for (const TokenRange& s : plan.ranges) {
    if (plan.groups.empty() || 2 * chunks(s) <= plan.groups.back().chunks) {
      plan.groups.push_back({&s - plan.ranges.data(), 0, chunks(s), plan.chunks});
    }
    ++plan.groups.back().count;
    plan.chunks += plan.groups.back().chunks;
  }
  return plan;
}

std::string sm80::fit_causal_problem(const Problem& p) {
  if (p.has_den()) return "q_den and k_den";
  const std::int64_t E = padded_columns(p.E);
  return fit_common(p, E / column_parts(E));
}

std::string chunkwise_fit_sm80(const Problem& p) {
  const std::string reason = sm80::fit_device(p);
  return reason.empty() ? sm80::fit_causal_problem(p) : reason;
}

}  // namespace mhla
