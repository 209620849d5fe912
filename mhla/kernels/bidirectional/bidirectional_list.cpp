// The entry points of the bidirectional form: check once, choose from the ordered list, run.
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/common/reference.h"

namespace mhla {
namespace {

constexpr Candidate<Problem> kForward[] = {
#ifdef MHLA_LIST_SM90
    {"sm90", bidirectional_fit_sm90, bidirectional_forward_sm90},
#endif
#ifdef MHLA_LIST_CUDA
    {"cuda", bidirectional_fit_cuda,
     bidirectional_forward_cuda},  // any card, any shape: the GPU side always ends in an answer
#endif
    {"simd", bidirectional_fit_simd, bidirectional_forward_simd},
    {"ref", reference::fit, bidirectional_forward_ref},  // the definition: by name, and for f64
};

constexpr Candidate<Problem> kBackward[] = {
#ifdef MHLA_LIST_SM90_BACKWARD
    {"sm90", bidirectional_fit_sm90, bidirectional_backward_sm90},
#endif
#ifdef MHLA_LIST_CUDA_BACKWARD
    {"cuda", bidirectional_fit_cuda, bidirectional_backward_cuda},
#endif
    {"simd", bidirectional_fit_simd, bidirectional_backward_simd},
    {"ref", reference::fit, bidirectional_backward_ref},
};

Problem problem_of(const BidirectionalParams& params, const char* entry, const RunOptions& run) {
  Problem p;
  p.entry = entry;
  p.stream = run.stream;
  p.q = params.q, p.k = params.k, p.v = params.v;
  p.maybe_q_den = params.maybe_q_den, p.maybe_k_den = params.maybe_k_den;
  p.mix = params.mix;
  p.maybe_cu_seqlens = params.maybe_cu_seqlens;
  p.layout = params.layout;
  p.feature_map = params.feature_map;
  p.normalizer = params.normalizer;
  p.eps = params.eps;
  p.scale = params.scale;
  return p;
}

Problem forward_problem(const BidirectionalParams& params, View out, const RunOptions& run) {
  Problem p = problem_of(params, "bidirectional_forward", run);
  p.out = out;
  check_problem(p);
  return p;
}

Problem backward_problem(const BidirectionalParams& params, const BidirectionalGrads& grads, const RunOptions& run) {
  Problem p = problem_of(params, "bidirectional_backward", run);
  p.backward = true;
  p.dout = grads.dout;
  p.dq = grads.dq, p.dk = grads.dk, p.dv = grads.dv, p.dmix = grads.dmix;
  p.maybe_dq_den = grads.maybe_dq_den, p.maybe_dk_den = grads.maybe_dk_den;
  check_problem(p);
  return p;
}

}  // namespace

std::vector<std::string_view> bidirectional_candidates() { return names_of<Problem>(kForward); }
std::vector<std::string_view> bidirectional_backward_candidates() { return names_of<Problem>(kBackward); }

void bidirectional_forward(const BidirectionalParams& params, View out, const RunOptions& run) {
  const Problem p = forward_problem(params, out, run);
  const auto& candidate = choose_candidate(kForward, p, run.candidate);
  if (!finish_empty(p)) run_candidate(candidate, p, run);
}

void bidirectional_backward(const BidirectionalParams& params, const BidirectionalGrads& grads, const RunOptions& run) {
  const Problem p = backward_problem(params, grads, run);
  const auto& candidate = choose_candidate(kBackward, p, run.candidate);
  if (!finish_empty(p)) run_candidate(candidate, p, run);
}

std::int64_t bidirectional_forward_workspace(const BidirectionalParams& params, View out, const RunOptions& run) {
  const Problem p = forward_problem(params, out, run);
  return count_workspace(choose<Problem>(kForward, p, run.candidate, p.entry), p, run);
}

std::int64_t bidirectional_backward_workspace(const BidirectionalParams& params, const BidirectionalGrads& grads,
                                              const RunOptions& run) {
  const Problem p = backward_problem(params, grads, run);
  return count_workspace(choose<Problem>(kBackward, p, run.candidate, p.entry), p, run);
}

}  // namespace mhla
