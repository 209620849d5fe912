// The entry points of the causal form: check once, choose from the ordered list, run.
#include <cmath>

#include "mhla/kernels/chunkwise/chunkwise.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/common/call.h"
#include "mhla/kernels/common/reference.h"

namespace mhla {
namespace {

constexpr bool kOnDevice = true;

constexpr Candidate<Problem> kForward[] = {
#ifdef MHLA_LIST_SM90
    {"sm90", chunkwise_fit_sm90, chunkwise_forward_sm90, kOnDevice},
#endif
#ifdef MHLA_LIST_SM80
    {"sm80", chunkwise_fit_sm80, chunkwise_forward_sm80, kOnDevice},
#endif
#ifdef MHLA_LIST_CUDA
    {"cuda", chunkwise_fit_cuda, chunkwise_forward_cuda,
     kOnDevice},  // any card, any shape: the GPU side always ends in an answer
#endif
    {"simd", chunkwise_fit_simd, chunkwise_forward_simd},
    {"ref", reference::fit, chunkwise_forward_ref},  // the definition: by name, and for f64
};

constexpr Candidate<Problem> kBackward[] = {
#ifdef MHLA_LIST_SM90_BACKWARD
    {"sm90", chunkwise_fit_sm90, chunkwise_backward_sm90, kOnDevice},
#endif
#ifdef MHLA_LIST_SM80_BACKWARD
    {"sm80", chunkwise_fit_sm80, chunkwise_backward_sm80, kOnDevice},
#endif
#ifdef MHLA_LIST_CUDA_BACKWARD
    {"cuda", chunkwise_fit_cuda, chunkwise_backward_cuda, kOnDevice},
#endif
    {"simd", chunkwise_fit_simd, chunkwise_backward_simd},
    {"ref", reference::fit, chunkwise_backward_ref},
};

Problem problem_of(const ChunkwiseParams& params, const char* entry, const RunOptions& run) {
  Problem p = problem_from(params, entry, run);
  p.causal = true;
  p.extend = params.beyond_mix == BeyondMix::kExtend;
  p.layout = Layout::line(params.chunk);
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
  set_gradients(grads, p);
  check_problem(p);
  return p;
}

}  // namespace

std::vector<std::string_view> chunkwise_candidates() { return names_of(kForward); }
std::vector<std::string_view> chunkwise_backward_candidates() { return names_of(kBackward); }

bool chunkwise_on_device(std::string_view candidate) { return on_device_in(kForward, candidate); }

void chunkwise_forward(const ChunkwiseParams& params, View out, const RunOptions& run) {
  run_call(kForward, forward_problem(params, out, run), run);
}

void chunkwise_backward(const ChunkwiseParams& params, const ChunkwiseGrads& grads, const RunOptions& run) {
  run_call(kBackward, backward_problem(params, grads, run), run);
}

std::int64_t chunkwise_forward_workspace(const ChunkwiseParams& params, View out, const RunOptions& run) {
  return workspace_of(kForward, forward_problem(params, out, run), run);
}

std::int64_t chunkwise_backward_workspace(const ChunkwiseParams& params, const ChunkwiseGrads& grads,
                                          const RunOptions& run) {
  return workspace_of(kBackward, backward_problem(params, grads, run), run);
}

std::int64_t chunkwise_kept(const ChunkwiseParams& params, View out, const RunOptions& run) {
  return kept_of(kForward, forward_problem(params, out, run), run);
}

std::vector<Support> chunkwise_forward_support(const ChunkwiseParams& params, View out) {
  return support_of(kForward, forward_problem(params, out, {}));
}

std::vector<Support> chunkwise_backward_support(const ChunkwiseParams& params, const ChunkwiseGrads& grads) {
  return support_of(kBackward, backward_problem(params, grads, {}));
}

}  // namespace mhla
