// Backward of the bidirectional form on CPU vectors for bf16: bidirectional_backward-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/bidirectional/bidirectional_backward_bf16_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/bidirectional/bidirectional_backward_part-inl.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

void backward_bf16(const Problem& p, Workspace& ws, Executor& executor) { backward<bf16>(p, ws, executor); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(backward_bf16);

void bidirectional_backward_bf16_simd(const Problem& problem, Workspace& workspace, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(problem, workspace, executor);
}

}  // namespace mhla
#endif
