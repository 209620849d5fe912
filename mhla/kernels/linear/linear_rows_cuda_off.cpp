// A build without CUDA: linear_rows_fit() says so, nothing calls this.
#include "mhla/core/error.h"
#include "mhla/kernels/linear/linear_rows_job.h"

namespace mhla {

void linear_rows_cuda(const LinearRowsParams& /*params*/, const LinearRowsJob& /*job*/, int /*slices*/,
                      void* /*stream*/) {
  fail("linear_rows: built without CUDA");
}
void linear_rows_sm90(const LinearRowsParams& /*params*/, const LinearRowsJob& /*job*/, int /*slices*/,
                      void* /*stream*/) {
  fail("linear_rows: built without CUDA");
}

}  // namespace mhla
