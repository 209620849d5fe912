// Streaming on CPU vectors for f16: streaming_append-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/streaming/streaming_f16_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/streaming/streaming_append-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

void append_f16(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  append_of<f16>(a, workspace, executor);
}
void rebuild_f16(StreamingState::Impl& state, bool same_chunk) { rebuild_of<f16>(state, same_chunk); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(append_f16);
HWY_EXPORT(rebuild_f16);

void streaming_append_f16_simd(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(append_f16)(a, workspace, executor);
}

void streaming_rebuild_f16_simd(StreamingState::Impl& state, bool same_chunk) {
  HWY_DYNAMIC_DISPATCH(rebuild_f16)(state, same_chunk);
}

}  // namespace mhla
#endif
