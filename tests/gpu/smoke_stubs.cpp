// The candidates that programs of this folder are built without: they step aside, so nothing calls their passes.
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/streaming/streaming_cuda.h"
#include "mhla/kernels/streaming/streaming_state.h"

namespace mhla {

std::string bidirectional_fit_simd(const Problem& /*problem*/) { return "not in this program"; }
void bidirectional_forward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }
void bidirectional_backward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }
std::string chunkwise_fit_simd(const Problem& /*problem*/) { return "not in this program"; }
void chunkwise_forward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }
void chunkwise_backward_simd(const Problem& p, Workspace&, Executor&) { fail(p.entry, ": not in this program"); }

// Weak: programs with streaming_decode_sm90.cu have the kernel itself.
[[gnu::weak]] bool cuda::decode_sm90_fits(const DecodeJob& /*job*/) { return false; }
[[gnu::weak]] void cuda::stream_decode_sm90(const DecodeCall& /*job*/, void* /*stream*/) {
  fail("decode: not in this program");
}
[[gnu::weak]] void cuda::stream_decode_sm90(const DecodeReplay& /*job*/, void* /*stream*/) {
  fail("decode: not in this program");
}

const StreamingCandidate kStreamingSimd = {
    .name = "simd",
    .on_device = false,
    .fit = [](const StreamingConfig&) { return std::string("not in this program"); },
    .element = DType::kF32,
    .keeps_features = false,
    .extra_slots = 0,
    .lanes = [] { return std::int64_t{0}; },
    .instruction_set = [] { return std::string(); },
    .append = nullptr,
    .rebuild = nullptr,
};

}  // namespace mhla
