// AdamW (decoupled weight decay) over parameter groups, g the gradient times its group's `scale`, t from 1:
//   p -= lr wd p;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   p -= lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
// One pass over memory on the CPU, every element on its own, so that threads change no bit. PyTorch 2's fused kernel
// on CUDA.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mhla/train/param_groups.h"

namespace mhla::train {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

class AdamW {
 public:
  AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options);
  // Parameters without a gradient stay as they are. `scales` [] f32 for every group, where the parameters are.
  void step(double lr, const std::vector<torch::Tensor>& scales);
  void zero_grad();

  [[nodiscard]] const std::vector<ParamGroup>& groups() const { return groups_; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }
  // m and v of every parameter, "m.<name>" and "v.<name>": what a checkpoint keeps beside steps().
  [[nodiscard]] std::vector<std::pair<std::string, torch::Tensor>> state() const;

 private:
  struct Moments {
    std::vector<torch::Tensor> m, v;  // as the group's parameters
  };
  AdamWOptions options_;
  std::vector<ParamGroup> groups_;
  std::vector<Moments> moments_;
  std::int64_t steps_ = 0;
};

}  // namespace mhla::train
