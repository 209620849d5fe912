// AdamW (decoupled weight decay) over parameter groups, g the gradient times its group's `scale`, t from 1:
//   p -= lr wd p;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   p -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
// One pass over memory on the CPU, every element on its own, so that threads change no bit. PyTorch 2's fused kernel
// on CUDA. Several processes may keep m and v together (sharded_row.h): each updates its range of the weights, then
// they exchange them, to the same bits.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mhla/train/param_groups.h"
#include "mhla/train/sharded_row.h"

namespace mhla::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

class AdamW {
 public:
  // `shared_by`: more than one process keeps m and v together.
  AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options, const Place& shared_by = {});
  // Parameters without a gradient stay as they are. `scales` [] f32 for every group, where the parameters are. All
  // processes have all of the weights when it returns.
  void step(double lr, const std::vector<torch::Tensor>& scales);
  void zero_grad();

  [[nodiscard]] const std::vector<ParamGroup>& groups() const { return groups_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  // m and v of every parameter, "m.<name>" and "v.<name>": what a checkpoint keeps beside steps(). Shared, they are
  // rows() instead.
  [[nodiscard]] NamedTensors state() const;
  [[nodiscard]] PrefixedRows rows() const;
  [[nodiscard]] NamedTensors shapes() const;  // tensors with the names, shapes and type of m and v

 private:
  struct Moments {
    // As the group's parameters; shared: undefined, or a range of their numbers from `begin` on.
    std::vector<torch::Tensor> m, v;
    std::vector<std::int64_t> begin;
  };
  void share();

  AdamWOptions options_;
  std::vector<ParamGroup> groups_;
  std::vector<Moments> moments_;
  Place place_;
  std::optional<ShardedRow> m_, v_;
  std::int64_t steps_ = 0;
};

}  // namespace mhla::train
