// The CUDA candidates in a build without CUDA. Their fit functions step aside, so nothing calls these.
#include "mhla/core/error.h"
#include "mhla/kernels/bidirectional/bidirectional_candidates.h"

namespace mhla {
namespace {

[[noreturn]] void refuse(const Problem& p, const char* candidate) {
  fail(p.entry, ": candidate ", candidate, ": built without CUDA");
}

}  // namespace

void bidirectional_forward_sm90(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse(p, "sm90");
}
void bidirectional_backward_sm90(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse(p, "sm90");
}
void bidirectional_forward_cuda(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse(p, "cuda");
}
void bidirectional_backward_cuda(const Problem& p, Workspace& /*workspace*/, Executor& /*executor*/) {
  refuse(p, "cuda");
}

}  // namespace mhla
