// The entry points of the bidirectional form: check once, choose from the ordered list, run.
#include "mhla/kernels/bidirectional/bidirectional.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/common/reference.h"

namespace mhla {
namespace {

constexpr bool kOnDevice = true;

constexpr Candidate<Problem> kForward[] = {
#ifdef MHLA_LIST_SM90
    {"sm90", bidirectional_fit_sm90, bidirectional_forward_sm90, kOnDevice},
#endif
#ifdef MHLA_LIST_SM80
    {"sm80", bidirectional_fit_sm80, bidirectional_forward_sm80, kOnDevice},
#endif
#ifdef MHLA_LIST_CUDA
    {"cuda", bidirectional_fit_cuda, bidirectional_forward_cuda,
     kOnDevice},  // any card, any shape: the GPU side always ends in an answer
#endif
    {"simd", bidirectional_fit_simd, bidirectional_forward_simd},
    {"ref", reference::fit, bidirectional_forward_ref},  // the definition: by name, and for f64
};

constexpr Candidate<Problem> kBackward[] = {
#ifdef MHLA_LIST_SM90_BACKWARD
    {"sm90", bidirectional_fit_sm90, bidirectional_backward_sm90, kOnDevice},
#endif
#ifdef MHLA_LIST_SM80_BACKWARD
    {"sm80", bidirectional_fit_sm80, bidirectional_backward_sm80, kOnDevice},
#endif
#ifdef MHLA_LIST_CUDA_BACKWARD
    {"cuda", bidirectional_fit_cuda, bidirectional_backward_cuda, kOnDevice},
#endif
    {"simd", bidirectional_fit_simd, bidirectional_backward_simd},
    {"ref", reference::fit, bidirectional_backward_ref},
};

Problem problem_of(const BidirectionalParams& params, const char* entry, const RunOptions& run) {
  Problem p = problem_from(params, entry, run);
  p.layout = params.layout;
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
  set_gradients(grads, p);
  check_problem(p);
  return p;
}

}  // namespace

std::vector<std::string_view> bidirectional_candidates() { return names_of(kForward); }
std::vector<std::string_view> bidirectional_backward_candidates() { return names_of(kBackward); }

bool bidirectional_on_device(std::string_view candidate) { return on_device_in(kForward, candidate); }

void bidirectional_forward(const BidirectionalParams& params, View out, const RunOptions& run) {
  run_call(kForward, forward_problem(params, out, run), run);
}

void bidirectional_backward(const BidirectionalParams& params, const BidirectionalGrads& grads, const RunOptions& run) {
  run_call(kBackward, backward_problem(params, grads, run), run);
}

std::int64_t bidirectional_forward_workspace(const BidirectionalParams& params, View out, const RunOptions& run) {
  return workspace_of(kForward, forward_problem(params, out, run), run);
}

std::int64_t bidirectional_backward_workspace(const BidirectionalParams& params, const BidirectionalGrads& grads,
                                              const RunOptions& run) {
  return workspace_of(kBackward, backward_problem(params, grads, run), run);
}

std::int64_t bidirectional_kept(const BidirectionalParams& params, View out, const RunOptions& run) {
  return kept_of(kForward, forward_problem(params, out, run), run);
}

std::vector<Support> bidirectional_forward_support(const BidirectionalParams& params, View out) {
  return support_of(kForward, forward_problem(params, out, {}));
}

std::vector<Support> bidirectional_backward_support(const BidirectionalParams& params,
                                                    const BidirectionalGrads& grads) {
  return support_of(kBackward, backward_problem(params, grads, {}));
}

}  // namespace mhla
