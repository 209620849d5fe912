// A build without CUDA: grid_conv_fit() says so, nothing calls these.
#include "mhla/core/error.h"
#include "mhla/kernels/grid_conv/grid_conv_job.h"

namespace mhla {

void grid_conv_cuda(const GridConvJob& /*job*/) { fail("grid_conv: built without CUDA"); }
void grid_conv_backward_cuda(const GridConvJob& /*job*/) { fail("grid_conv_backward: built without CUDA"); }

}  // namespace mhla
