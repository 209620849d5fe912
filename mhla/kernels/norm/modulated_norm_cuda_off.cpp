// A build without CUDA: modulated_norm_fit() says so, nothing calls these.
#include "mhla/core/error.h"
#include "mhla/kernels/norm/modulated_norm_job.h"

namespace mhla {

void modulated_norm_cuda(const ModulatedNormJob& /*job*/) { fail("modulated_norm: built without CUDA"); }
void modulated_norm_backward_cuda(const ModulatedNormJob& /*job*/) {
  fail("modulated_norm_backward: built without CUDA");
}

}  // namespace mhla
