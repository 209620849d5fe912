// Gradients of a step, summed over the microbatches of all ranks. Parameters are put into buckets from the last to the
// first, and a bucket is on its way as soon as backward has all of it, while the rest is still computed.
//
// A pass is cut into leaves, each a microbatch of its own. With `fixed_tree` the sum is a binary tree over the leaves
// of all ranks,
//   ((g0 + g1) + (g2 + g3)) + ((g4 + g5) + (g6 + g7)),
// whoever computes them: a rank adds up its own branch, ranks exchange equal parts (all-to-all), each finishes the tree
// for its part and hands it to the others (all-gather). 8 leaves give the same bits on 1, 2, 4 and 8 ranks, for as many
// bytes as an all-reduce. Ranks that share sequences (`context`) come last in the tree: first all leaves of the first
// of each group, then all of the second, so that the number of groups makes no difference.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mhla/train/distributed/team.h"

namespace mhla::distributed {

struct GradientSumOptions {
  std::int64_t leaves = 1;  // of this rank in a pass; a power of two
  bool fixed_tree = false;  // then the number of ranks is one, too
  int context = 1;          // ranks [n * context, (n + 1) * context) compute the same leaves, each for its tokens
  std::int64_t bucket_bytes = 16 << 20;
  bool overlap = true;  // false: everything is sent after backward, as a CUDA graph needs it
};

class GradientSum {
 public:
  // `maybe_team` null: one process, whose leaves are added up as those of many would be. `buffers` are those of the
  // model: running means of the leaves become their mean over all leaves.
  GradientSum(Team* maybe_team, std::vector<std::string> names, std::vector<at::Tensor> params,
              std::vector<at::Tensor> buffers, const GradientSumOptions& options);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // A step: `passes` times all leaves, in this order. Forward and backward of a microbatch run between the two calls;
  // a microbatch without samples may leave them out.
  void begin(std::int64_t passes);
  void before_microbatch();
  void after_microbatch();
  // Waits for the others: gradients are the sums over all microbatches now.
  void finish();
  // Of this rank's own gradients, as they were before the sum: [] f32, no finite number where one of them is none. From
  // finish() to forget_own(), until when they are kept.
  [[nodiscard]] at::Tensor own_norm() const;
  void forget_own();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the hooks of the parameters
};

}  // namespace mhla::distributed
