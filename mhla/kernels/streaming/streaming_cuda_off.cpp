// The kernels of streaming in a build without CUDA. No state can be made on a device, so nothing calls these.
#include "mhla/core/error.h"
#include "mhla/kernels/streaming/streaming_cuda.h"

namespace mhla::cuda {
namespace {

[[noreturn]] void refuse() { fail("streaming_append: candidate cuda: built without CUDA"); }

}  // namespace

void stream_summaries(DType /*dtype*/, const StreamJob& /*job*/, void* /*stream*/) { refuse(); }
void stream_prefixes(DType /*arithmetic*/, const StreamJob& /*job*/, void* /*stream*/) { refuse(); }
void stream_denominators(DType /*dtype*/, const StreamJob& /*job*/, void* /*stream*/) { refuse(); }
void stream_read_out(DType /*dtype*/, const StreamJob& /*job*/, void* /*stream*/) { refuse(); }
void stream_fold(const StreamJob& /*job*/, void* /*stream*/) { refuse(); }
void stream_keep(DType /*dtype*/, const StreamJob& /*job*/, void* /*stream*/) { refuse(); }
void stream_decode(DType /*dtype*/, const DecodeCall& /*job*/, void* /*stream*/) { refuse(); }
void stream_decode(DType /*dtype*/, const DecodeReplay& /*job*/, void* /*stream*/) { refuse(); }
void stream_decode_panels(const DecodeCall& /*job*/, void* /*stream*/) { refuse(); }
void stream_decode_panels(const DecodeReplay& /*job*/, void* /*stream*/) { refuse(); }

}  // namespace mhla::cuda
