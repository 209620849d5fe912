// Stands in for phases_cuda.cu in a build without CUDA, where the fit has said so.
#include "mhla/core/error.h"
#include "mhla/kernels/phases/phases_candidates.h"

namespace mhla {

void phases_cuda(const Problem& problem, Workspace&, Executor&) { fail(problem.entry, ": built without CUDA"); }

}  // namespace mhla
