// A build without CUDA: the list says so, nothing calls this.
#include "mhla/core/error.h"
#include "mhla/kernels/rope/rope_problem.h"

namespace mhla {

void rope_cuda(const RopeProblem&, Workspace&, Executor&) { fail("rope: built without CUDA"); }

}  // namespace mhla
