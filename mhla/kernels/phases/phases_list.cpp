// The entry points of the phases: check once, choose from the ordered list of the form, run.
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/common/reference.h"
#include "mhla/kernels/phases/phases.h"
#include "mhla/kernels/phases/phases_candidates.h"

namespace mhla {
namespace {

constexpr bool kOnDevice = true;

constexpr Candidate<Problem> kBidirectionalForward[] = {
    {"cuda", phases_fit_cuda, phases_cuda, kOnDevice},
    {"simd", bidirectional_fit_simd, bidirectional_forward_simd},
    {"ref", reference::fit, phases_ref},
};
constexpr Candidate<Problem> kBidirectionalBackward[] = {
    {"cuda", phases_fit_cuda, phases_cuda, kOnDevice},
    {"simd", bidirectional_fit_simd, bidirectional_backward_simd},
    {"ref", reference::fit, phases_ref},
};
constexpr Candidate<Problem> kCausalForward[] = {
    {"cuda", phases_fit_cuda, phases_cuda, kOnDevice},
    {"simd", chunkwise_fit_simd, chunkwise_forward_simd},
    {"ref", reference::fit, phases_ref},
};
constexpr Candidate<Problem> kCausalBackward[] = {
    {"cuda", phases_fit_cuda, phases_cuda, kOnDevice},
    {"simd", chunkwise_fit_simd, chunkwise_backward_simd},
    {"ref", reference::fit, phases_ref},
};

std::span<const Candidate<Problem>> list_of(const Problem& p) {
  if (p.causal) return p.backward ? kCausalBackward : kCausalForward;
  return p.backward ? kBidirectionalBackward : kBidirectionalForward;
}

Problem problem_of(const PhaseParams& params, const char* entry, Phase phase, const RunOptions& run) {
  Problem p;
  p.entry = entry;
  p.stream = run.stream;
  p.causal = params.causal;
  p.q = params.q, p.k = params.k, p.v = params.v;
  p.maybe_q_den = params.maybe_q_den, p.maybe_k_den = params.maybe_k_den;
  p.mix = params.mix;
  p.layout = params.layout;
  p.feature_map = params.feature_map;
  p.normalizer = params.normalizer;
  p.eps = params.eps;
  p.part.phase = phase;
  p.part.tokens = params.tokens;
  p.part.first = params.first_block, p.part.blocks = params.local_blocks;
  const bool by_size = params.causal && params.normalizer == Normalizer::kNone;
  const bool sized = params.q.rank == 4 && params.q.shape[3] > 0;
  p.scale = params.scale.value_or(by_size && sized ? 1.0 / std::sqrt(static_cast<double>(params.q.shape[3])) : 1.0);
  if (params.tokens < 0) fail(entry, ": tokens is ", params.tokens, ", expected at least 0");
  if (params.causal && params.layout.rank != 1)
    fail(entry, ": layout has ", params.layout.rank, " axes, expected 1 in the causal form");
  if (params.normalizer == Normalizer::kOfficial)
    fail(entry, ": normalizer is official, whose denominators read queries of every block; expected paper or none");
  return p;
}

void run_phase(Problem& p, const RunOptions& run) {
  check_problem(p);
  run_call(list_of(p), p, run);
}

}  // namespace

std::int64_t phase_summary_size(const PhaseParams& params) {
  if (params.k.rank != 4 || params.v.rank != 4) return 0;
  const std::int64_t D = params.k.shape[3], E = params.v.shape[3];
  return D * E + (params.normalizer == Normalizer::kNone ? 0 : D);
}

std::int64_t phase_gradient_heads(const PhaseParams& params) {
  if (params.q.rank != 4 || params.k.rank != 4) return 0;
  const bool own = params.mix.rank == 3 && params.mix.shape[0] > 1;
  return own ? params.q.shape[2] : params.k.shape[2];
}

void phase_summaries(const PhaseParams& params, View summaries, const RunOptions& run) {
  Problem p = problem_of(params, "phase_summaries", Phase::kSummaries, run);
  p.part.own = summaries;
  run_phase(p, run);
}

void phase_output(const PhaseParams& params, ConstView summaries, View out, const RunOptions& run) {
  Problem p = problem_of(params, "phase_output", Phase::kOutput, run);
  p.part.gathered = summaries;
  p.out = out;
  run_phase(p, run);
}

void phase_queries(const PhaseParams& params, ConstView summaries, const PhaseGrads& grads, View dP, View maybe_terms,
                   const RunOptions& run) {
  Problem p = problem_of(params, "phase_queries", Phase::kQueries, run);
  p.backward = true;
  p.dout = grads.dout, p.dq = grads.dq, p.dmix = grads.dmix, p.maybe_dq_den = grads.maybe_dq_den;
  p.part.gathered = summaries;
  p.part.own = dP;
  p.part.own_terms = maybe_terms;
  run_phase(p, run);
}

void phase_keys(const PhaseParams& params, ConstView dP, ConstView maybe_terms, const PhaseGrads& grads,
                const RunOptions& run) {
  Problem p = problem_of(params, "phase_keys", Phase::kKeys, run);
  p.backward = true;
  p.dout = grads.dout, p.dk = grads.dk, p.dv = grads.dv, p.maybe_dk_den = grads.maybe_dk_den;
  p.part.gathered = dP;
  p.part.terms = maybe_terms;
  run_phase(p, run);
}

BlockRange blocks_of_rank(const Layout& layout, std::int64_t tokens, std::int64_t P, std::int64_t rank) {
  constexpr const char* kEntry = "blocks_of_rank";
  check_layout(layout, tokens, kEntry);
  const std::int64_t M = BlockMap(layout, tokens).blocks();
  if (P < 1 || P > M) fail(kEntry, ": ", P, " processes for ", M, " blocks, expected 1 to ", M);
  if (rank < 0 || rank >= P) fail(kEntry, ": rank is ", rank, ", expected 0 to ", P - 1);
  const auto axis = static_cast<std::size_t>(3 - layout.rank);
  const std::int64_t slices = layout.rank == 1 ? M : layout.blocks[axis];
  const std::int64_t units = P <= slices ? slices : M, each = M / units;
  const std::int64_t first = units * rank / P, end = units * (rank + 1) / P;
  return {first * each, (end - first) * each};
}

}  // namespace mhla
