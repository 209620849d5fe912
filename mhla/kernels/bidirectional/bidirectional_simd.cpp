// Forward of the bidirectional form on CPU vectors: which way a sequence goes, and f32 (bidirectional_forward-inl.h).
// The other dtypes and the way of short sequences (bidirectional_quadratic_simd.cpp) are files of their own, so that
// each compiles within a minute.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/bidirectional/bidirectional_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/bidirectional/bidirectional_forward_part-inl.h"
#include "mhla/kernels/bidirectional/bidirectional_plan.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

void forward_f32(const Problem& p, Workspace& ws, Executor& executor) { forward<float>(p, ws, executor); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(forward_f32);

std::string bidirectional_fit_simd(const Problem& p) {
  if (p.q.device != kCpu) return str("memory is on cuda:", p.q.device);
  if (p.is_f64()) return "dtype f64";
  if (HWY_MAX(p.D, p.E) > kMaxSimdHeadSize)
    return str("D = ", p.D, ", E = ", p.E, ": head sizes above ", kMaxSimdHeadSize);
  return "";
}

// Sequences go by the way their length asks for; each has the same bits alone and packed with others.
void bidirectional_forward_simd(const Problem& p, Workspace& workspace, Executor& executor) {
  Problem by_summaries = p, quadratic = p;
  by_summaries.sequences.clear();
  quadratic.sequences.clear();
  for (const Sequence& s : p.sequences) {
    const std::int64_t M = BlockMap(p.layout, s.length).blocks();
    const bool small =
        !p.part.given() && bidirectional_way(s.length, M, p.D, p.E, p.normalizer) == BidirectionalWay::kQuadratic;
    (small ? quadratic : by_summaries).sequences.push_back(s);
  }
  if (!quadratic.sequences.empty()) bidirectional_quadratic_simd(quadratic, workspace, executor);
  if (by_summaries.sequences.empty()) return;
  switch (p.dtype()) {
    case DType::kF32: HWY_DYNAMIC_DISPATCH(forward_f32)(by_summaries, workspace, executor); return;
    case DType::kBF16: bidirectional_forward_bf16_simd(by_summaries, workspace, executor); return;
    default: bidirectional_forward_f16_simd(by_summaries, workspace, executor); return;
  }
}

}  // namespace mhla
#endif
