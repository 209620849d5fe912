// Which parts the `cuda` candidate takes: what that of the forms takes, where a process holds whole slices of the first
// axis, so that its tokens are a sequence or a grid of their own.
#include "mhla/core/error.h"
#include "mhla/kernels/common/cuda/plan.h"
#include "mhla/kernels/phases/phases_candidates.h"

namespace mhla {

std::string phases_fit_cuda(const Problem& p) {
  if (std::string reason = cuda::fit(p); !reason.empty()) return reason;
  if (p.layout.rank == 1) return {};
  const std::int64_t slices = p.layout.blocks[static_cast<std::size_t>(3 - p.layout.rank)], each = p.M / slices;
  if (p.part.first % each == 0 && p.part.blocks % each == 0) return {};
  return str("blocks ", p.part.first, " to ", p.part.first + p.part.blocks,
             " are not whole slices of the first axis, of ", each, " blocks each");
}

}  // namespace mhla
