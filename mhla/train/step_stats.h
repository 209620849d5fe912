// Numbers of a step on their way to the host. On a GPU the copy is queued and read one step later, so that the host
// never waits for the step it has just launched.
#pragma once

#include <memory>
#include <vector>

#include "mhla/train/torch.h"

namespace mhla::train {

class StepStats {
 public:
  explicit StepStats(const torch::Tensor& values);  // [n] f32
  ~StepStats();
  StepStats(StepStats&&) noexcept;
  StepStats& operator=(StepStats&&) noexcept;
  std::vector<double> wait();

 private:
  struct Ready;
  torch::Tensor host_;
  std::unique_ptr<Ready> ready_;
};

}  // namespace mhla::train
