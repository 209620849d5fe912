// Streaming on CPU vectors: the candidate, and f32 (streaming_append-inl.h). The other dtypes are files of their own,
// so that each compiles within a minute.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/streaming/streaming_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming_append-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

void append_f32(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  append<float, float>(a, workspace, executor);
}
void rebuild_f32(StreamingState::Impl& state, bool same_chunk) { rebuild<float, float>(state, same_chunk); }

std::int64_t lanes_any() { return kLanes; }
const char* target_any() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {
namespace {

HWY_EXPORT(append_f32);
HWY_EXPORT(rebuild_f32);
HWY_EXPORT(lanes_any);
HWY_EXPORT(target_any);

std::string fit_simd(const StreamingConfig& c) {
  if (c.dtype == DType::kF64) return "dtype f64";
  if (c.D > kMaxSimdHeadSize) return str("D = ", c.D, ", at most ", kMaxSimdHeadSize);
  if (c.E > kMaxSimdHeadSize) return str("E = ", c.E, ", at most ", kMaxSimdHeadSize);
  return "";
}

void append_simd(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  switch (a.state(0).config.dtype) {
    case DType::kBF16: streaming_append_bf16_simd(a, workspace, executor); return;
    case DType::kF16: streaming_append_f16_simd(a, workspace, executor); return;
    default: HWY_DYNAMIC_DISPATCH(append_f32)(a, workspace, executor); return;
  }
}

void rebuild_simd(StreamingState::Impl& state, bool same_chunk) {
  switch (state.config.dtype) {
    case DType::kBF16: streaming_rebuild_bf16_simd(state, same_chunk); return;
    case DType::kF16: streaming_rebuild_f16_simd(state, same_chunk); return;
    default: HWY_DYNAMIC_DISPATCH(rebuild_f32)(state, same_chunk); return;
  }
}

}  // namespace

const StreamingCandidate kStreamingSimd = {
    .name = "simd",
    .on_device = false,
    .fit = fit_simd,
    .element = DType::kF32,
    .keeps_features = true,
    .extra_slots = 0,
    .lanes = [] { return HWY_DYNAMIC_DISPATCH(lanes_any)(); },
    .instruction_set = [] { return std::string(HWY_DYNAMIC_DISPATCH(target_any)()); },
    .append = append_simd,
    .rebuild = rebuild_simd,
};

}  // namespace mhla
#endif
