// The entry points of the causal form: check once, choose from the ordered list, run.
#include <cmath>

#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/common/reference.h"

namespace mhla {
namespace {

constexpr Candidate<Problem> kForward[] = {
#ifdef MHLA_LIST_SM90
    {"sm90", chunkwise_fit_sm90, chunkwise_forward_sm90},
#endif
#ifdef MHLA_LIST_CUDA
    {"cuda", chunkwise_fit_cuda, chunkwise_forward_cuda},  // any card, any shape: the GPU side always ends in an answer
#endif
    {"simd", chunkwise_fit_simd, chunkwise_forward_simd},
    {"ref", reference::fit, chunkwise_forward_ref},  // the definition: by name, and for f64
};

constexpr Candidate<Problem> kBackward[] = {
#ifdef MHLA_LIST_SM90_BACKWARD
    {"sm90", chunkwise_fit_sm90, chunkwise_backward_sm90},
#endif
#ifdef MHLA_LIST_CUDA_BACKWARD
    {"cuda", chunkwise_fit_cuda, chunkwise_backward_cuda},
#endif
    {"simd", chunkwise_fit_simd, chunkwise_backward_simd},
    {"ref", reference::fit, chunkwise_backward_ref},
};

Problem problem_of(const ChunkwiseParams& params, const char* entry, const RunOptions& run) {
  Problem p;
  p.entry = entry;
  p.stream = run.stream;
  p.causal = true;
  p.extend = params.beyond_mix == BeyondMix::kExtend;
  p.q = params.q, p.k = params.k, p.v = params.v;
  p.maybe_q_den = params.maybe_q_den, p.maybe_k_den = params.maybe_k_den;
  p.mix = params.mix;
  p.maybe_cu_seqlens = params.maybe_cu_seqlens;
  p.layout = Layout::line(params.chunk);
  p.feature_map = params.feature_map;
  p.normalizer = params.normalizer;
  p.eps = params.eps;
  p.scale = 1.0;
  if (params.scale) {
    p.scale = *params.scale;
  } else if (params.normalizer == Normalizer::kNone && params.q.rank == 4 && params.q.shape[3] > 0) {
    p.scale = 1.0 / std::sqrt(static_cast<double>(params.q.shape[3]));
  }
  return p;
}

Problem forward_problem(const ChunkwiseParams& params, View out, const RunOptions& run) {
  Problem p = problem_of(params, "chunkwise_forward", run);
  p.out = out;
  check_problem(p);
  return p;
}

Problem backward_problem(const ChunkwiseParams& params, const ChunkwiseGrads& grads, const RunOptions& run) {
  Problem p = problem_of(params, "chunkwise_backward", run);
  p.backward = true;
  p.dout = grads.dout;
  p.dq = grads.dq, p.dk = grads.dk, p.dv = grads.dv, p.dmix = grads.dmix;
  p.maybe_dq_den = grads.maybe_dq_den, p.maybe_dk_den = grads.maybe_dk_den;
  check_problem(p);
  return p;
}

}  // namespace

std::vector<std::string_view> chunkwise_candidates() { return names_of<Problem>(kForward); }
std::vector<std::string_view> chunkwise_backward_candidates() { return names_of<Problem>(kBackward); }

void chunkwise_forward(const ChunkwiseParams& params, View out, const RunOptions& run) {
  const Problem p = forward_problem(params, out, run);
  const auto& candidate = choose_candidate(kForward, p, run.candidate);
  if (!finish_empty(p)) run_candidate(candidate, p, run);
}

void chunkwise_backward(const ChunkwiseParams& params, const ChunkwiseGrads& grads, const RunOptions& run) {
  const Problem p = backward_problem(params, grads, run);
  const auto& candidate = choose_candidate(kBackward, p, run.candidate);
  if (!finish_empty(p)) run_candidate(candidate, p, run);
}

std::int64_t chunkwise_forward_workspace(const ChunkwiseParams& params, View out, const RunOptions& run) {
  const Problem p = forward_problem(params, out, run);
  return count_workspace(choose<Problem>(kForward, p, run.candidate, p.entry), p, run);
}

std::int64_t chunkwise_backward_workspace(const ChunkwiseParams& params, const ChunkwiseGrads& grads,
                                          const RunOptions& run) {
  const Problem p = backward_problem(params, grads, run);
  return count_workspace(choose<Problem>(kBackward, p, run.candidate, p.entry), p, run);
}

}  // namespace mhla
