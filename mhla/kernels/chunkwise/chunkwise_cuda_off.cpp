// The CUDA candidates in a build without CUDA. Their fit functions step aside, so nothing calls these.
#include "mhla/kernels/chunkwise/chunkwise_candidates.h"

namespace mhla {

void chunkwise_forward_sm90(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm90");
}
void chunkwise_backward_sm90(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm90");
}
void chunkwise_forward_sm80(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm80");
}
void chunkwise_backward_sm80(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm80");
}
void chunkwise_forward_cuda(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "cuda");
}
void chunkwise_backward_cuda(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "cuda");
}

}  // namespace mhla
