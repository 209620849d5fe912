// Backward of the bidirectional form on CPU vectors: f32, and the way to the files of the other dtypes
// (bidirectional_backward-inl.h), which compile beside it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/bidirectional/bidirectional_backward_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/bidirectional/bidirectional_backward_part-inl.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

void backward_f32(const Problem& p, Workspace& ws, Executor& executor) { backward<float>(p, ws, executor); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(backward_f32);

void bidirectional_backward_simd(const Problem& problem, Workspace& workspace, Executor& executor) {
  switch (problem.dtype()) {
    case DType::kF32: HWY_DYNAMIC_DISPATCH(backward_f32)(problem, workspace, executor); return;
    case DType::kBF16: bidirectional_backward_bf16_simd(problem, workspace, executor); return;
    default: bidirectional_backward_f16_simd(problem, workspace, executor); return;
  }
}

}  // namespace mhla
#endif
