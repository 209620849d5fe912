// The CUDA candidates in a build without CUDA. Their fit functions step aside, so nothing calls these.
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"

namespace mhla {

void bidirectional_forward_sm90(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm90");
}
void bidirectional_backward_sm90(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm90");
}
void bidirectional_forward_sm80(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm80");
}
void bidirectional_backward_sm80(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "sm80");
}
void bidirectional_forward_cuda(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "cuda");
}
void bidirectional_backward_cuda(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse_without_cuda(p, "cuda");
}

}  // namespace mhla
