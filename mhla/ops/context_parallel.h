// One sequence over several processes: each holds the tokens of some blocks and gets their outputs. Block summaries are
// gathered forward, their gradients backward (mhla/kernels/phases): out, dq, dk and dv have the bits of one process.
// dmix is the part of this process, like the gradient of every weight that all of them use: it is summed over the
// group.
#pragma once

#include <vector>

#include "mhla/kernels/phases/phases.h"
#include "mhla/ops/phases.h"

namespace mhla::ops {

// The processes that share a sequence. Every one makes the same calls in the same order.
class ContextGroup {
 public:
  virtual ~ContextGroup() = default;
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Rows of all, one after the other: own [counts[rank], ...] to [sum of counts, ...].
  virtual at::Tensor gather(const at::Tensor& own, const std::vector<std::int64_t>& counts) = 0;
};

// Which tokens of a causal sequence a process has, by the rule of blocks_of_rank().
struct TokenRange {
  std::int64_t first, count;
};
TokenRange tokens_of_rank(std::int64_t chunk, std::int64_t tokens, std::int64_t size, std::int64_t rank);

// The operator with gradients. `options`: first_block and local_blocks are filled in.
at::Tensor shared_attention(const AttentionInputs& in, PhaseOptions options, ContextGroup& group);

// The last `count` rows of the process before, zeros in the first one: what a causal convolution reads across the cut.
// x [B, n, C] to [B, count, C], with gradients; n of every process is at least `count`.
at::Tensor rows_before(const at::Tensor& x, std::int64_t count, ContextGroup& group);

}  // namespace mhla::ops
