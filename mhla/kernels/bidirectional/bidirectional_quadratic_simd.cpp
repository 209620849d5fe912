// Forward of short sequences on CPU vectors, without summaries (bidirectional_quadratic-inl.h). A file of its own, so
// that it compiles beside the other way.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/bidirectional/bidirectional_quadratic_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_quadratic-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void quadratic(const Problem& p, Workspace& ws, Executor& executor) {
  Quadratic<T> pass(p, ws, executor);
  if (!ws.counting()) pass.run();
}

void quadratic_any(const Problem& p, Workspace& ws, Executor& executor) {
  switch (p.dtype()) {
    case DType::kF32: quadratic<float>(p, ws, executor); return;
    case DType::kBF16: quadratic<bf16>(p, ws, executor); return;
    default: quadratic<f16>(p, ws, executor); return;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(quadratic_any);

void bidirectional_quadratic_simd(const Problem& problem, Workspace& workspace, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(quadratic_any)(problem, workspace, executor);
}

}  // namespace mhla
#endif
