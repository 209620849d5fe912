// Which problems the `cuda` candidate takes: everything on a CUDA device but f64 and heads above 256.
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"
#include "mhla/kernels/common/cuda/plan.h"

namespace mhla {

std::string chunkwise_fit_cuda(const Problem& problem) { return cuda::fit(problem); }

}  // namespace mhla
