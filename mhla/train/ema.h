// A running average of the weights: e = d e + (1 - d) p after every step t (from 1), with
// d = min(decay, (1 + t) / (10 + t)), so that the first steps do not linger. Buffers are copied.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mhla/train/torch.h"

namespace mhla::train {

class Ema {
 public:
  Ema(const torch::nn::Module& model, double decay);
  void update(std::int64_t step);
  // The average by the names of the model's parameters and buffers.
  [[nodiscard]] std::vector<std::pair<std::string, torch::Tensor>> state() const;

  // Swaps the average with the weights: once to evaluate it, once to go on.
  void swap();

 private:
  double decay_;
  std::vector<std::string> names_;
  std::vector<torch::Tensor> live_, average_;  // parameters first, then buffers
  std::size_t params_ = 0;
};

}  // namespace mhla::train
