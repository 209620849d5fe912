// The causal form on CPU vectors, backward: the pass of chunkwise_backward_pass-inl.h, or a phase of it, for
// every dtype.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/chunkwise/chunkwise_backward_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/chunkwise/chunkwise_backward_part-inl.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void backward(const Problem& p, Workspace& workspace, Executor& executor) {
  if (p.part.given()) {
    CausalBackwardPart<T> run(p, workspace, executor);
    if (!workspace.counting()) run.run();
  } else {
    CausalBackward<T> run(p, workspace, executor);
    if (!workspace.counting()) run.run();
  }
}

void backward_any(const Problem& p, Workspace& workspace, Executor& executor) {
  switch (p.dtype()) {
    case DType::kBF16: return backward<bf16>(p, workspace, executor);
    case DType::kF16: return backward<f16>(p, workspace, executor);
    default: return backward<float>(p, workspace, executor);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(backward_any);

void chunkwise_backward_simd(const Problem& p, Workspace& workspace, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(backward_any)(p, workspace, executor);
}

}  // namespace mhla
#endif
