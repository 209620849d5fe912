// A build without CUDA: swiglu_fit() says so, nothing calls these.
#include "mhla/core/error.h"
#include "mhla/kernels/swiglu/swiglu_job.h"

namespace mhla {

void swiglu_cuda(const SwigluJob& /*job*/) { fail("swiglu: built without CUDA"); }
void swiglu_backward_cuda(const SwigluJob& /*job*/) { fail("swiglu_backward: built without CUDA"); }

}  // namespace mhla
