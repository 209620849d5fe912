// One sequence over several processes: each holds the tokens of some blocks and gets their outputs. Two methods, both
// exact:
//   summaries  block summaries are gathered forward, their gradients backward (mhla/kernels/phases): out, dq, dk and dv
//              have the bits of one process
//   heads      processes exchange heads for tokens, compute whole sequences of their heads, and exchange them back
// dmix is the part of this process, like the gradient of every weight that all of them use: it is summed over the
// group.
#pragma once

#include <string>
#include <vector>

#include "mhla/kernels/phases/phases.h"
#include "mhla/ops/phases.h"

namespace mhla::ops {

// The processes that share a sequence. Every one makes the same calls in the same order. Tensors are contiguous.
class ContextGroup {
 public:
  virtual ~ContextGroup() = default;
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Rows of all, one after the other: own [counts[rank], ...] to [sum of counts, ...].
  virtual at::Tensor gather(const at::Tensor& own, const std::vector<std::int64_t>& counts) = 0;
  // `own`, [sum of send], has a piece for every process, one after the other; returns the pieces of all for this one,
  // [sum of receive].
  virtual at::Tensor exchange(const at::Tensor& own, const std::vector<std::int64_t>& send,
                              const std::vector<std::int64_t>& receive) = 0;
};

// ---- Which method

enum class ContextMethod : std::uint8_t { kAuto, kSummaries, kHeads };
const char* name_of(ContextMethod method);                    // "auto", "summaries", "heads"
ContextMethod parse_context_method(const std::string& name);  // throws mhla::Error with the three

// What a plan needs to know of a call.
struct ContextShape {
  std::int64_t B = 1, H = 1, Hkv = 1, D = 1, E = 1;
  bool mix_per_head = false;
  bool den = false;          // with q_den and k_den
  std::int64_t element = 4;  // bytes of a number of q, k and v
  bool on_cpu = true;
};

struct ContextPlan {
  ContextMethod method = ContextMethod::kSummaries;
  std::string reason;
  std::int64_t values = 0, values_backward = 0;  // that a process receives; where processes differ, the most
  std::int64_t bytes = 0;                        // forward and backward
};

// The method that sends fewer bytes of those that are possible, or the one that is asked for. `whole`: layout, tokens,
// normaliser. Throws mhla::Error with the reasons where none is possible.
ContextPlan plan_context(const ContextShape& shape, const PhaseOptions& whole, std::int64_t processes,
                         ContextMethod asked = ContextMethod::kAuto);

// ---- The operator and what stands around it

// Which tokens a process has, by the rule of blocks_of_rank(). Throws where they are not consecutive: on a grid with
// more processes than blocks along its first axis.
struct TokenRange {
  std::int64_t first = 0, count = 0;
};
TokenRange tokens_of_rank(const Layout& layout, std::int64_t tokens, std::int64_t size, std::int64_t rank);

// The operator with gradients. `options`: first_block and local_blocks are filled in.
at::Tensor shared_attention(const AttentionInputs& in, PhaseOptions options, ContextGroup& group,
                            ContextMethod method = ContextMethod::kAuto);

// The last `count` rows of the process before, zeros in the first one: what a causal convolution reads across the cut.
// x [B, n, C] to [B, count, C], with gradients; n of every process is at least `count`.
at::Tensor rows_before(const at::Tensor& x, std::int64_t count, ContextGroup& group);

// x between the last `count` rows of the process before and the first of the one after, zeros at both ends of the
// sequence: [B, n, C] to [B, count + n + count, C], with gradients; n of every process is at least `count`.
at::Tensor rows_around(const at::Tensor& x, std::int64_t count, ContextGroup& group);

// grid_conv() where a process holds slices of the first axis of the grid: inputs are of its tokens, `grid` is whole.
at::Tensor shared_grid_conv(const GridConvInputs& inputs, std::vector<std::int64_t> grid, ContextGroup& group);

// The rows of all processes, [B, n, C] to [B, N, C]. All compute the same loss from them; a trainer that takes the mean
// over the processes gets its gradient, as backward gives each its own rows times the number of processes.
at::Tensor all_rows(const at::Tensor& x, const std::vector<std::int64_t>& counts, ContextGroup& group);

}  // namespace mhla::ops
