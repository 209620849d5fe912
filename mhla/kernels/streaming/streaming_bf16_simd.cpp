// Streaming on CPU vectors for bf16: streaming_append-inl.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "mhla/kernels/streaming/streaming_bf16_simd.cpp"
#include "hwy/foreach_target.h"
// foreach_target.h first: it includes this file once per instruction set
#include "mhla/kernels/streaming/streaming_append-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mhla {
namespace HWY_NAMESPACE {
namespace {

void append_bf16(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  append_of<bf16>(a, workspace, executor);
}
void rebuild_bf16(StreamingState::Impl& state, bool same_chunk) { rebuild_of<bf16>(state, same_chunk); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mhla
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mhla {

HWY_EXPORT(append_bf16);
HWY_EXPORT(rebuild_bf16);

void streaming_append_bf16_simd(const StreamingAppend& a, Workspace& workspace, Executor& executor) {
  HWY_DYNAMIC_DISPATCH(append_bf16)(a, workspace, executor);
}

void streaming_rebuild_bf16_simd(StreamingState::Impl& state, bool same_chunk) {
  HWY_DYNAMIC_DISPATCH(rebuild_bf16)(state, same_chunk);
}

}  // namespace mhla
#endif
