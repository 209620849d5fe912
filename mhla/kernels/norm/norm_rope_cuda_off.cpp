// A build without CUDA: norm_rope_fit() says so, nothing calls this.
#include "mhla/core/error.h"
#include "mhla/kernels/norm/norm_rope_job.h"

namespace mhla {

void norm_rope_cuda(const NormRopeJob& /*job*/) { fail("norm_rope: built without CUDA"); }

}  // namespace mhla
