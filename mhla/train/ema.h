// A running average of the weights: e = d e + (1 - d) p after every step t (from 1), with
// d = min(decay, (1 + t) / (10 + t)), so that the first steps do not linger. Buffers are copied. Several processes may
// keep the average of the parameters together (sharded_row.h), to the same bits.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mhla/train/sharded_row.h"
#include "mhla/train/torch.h"

namespace mhla::train {

class Ema {
 public:
  // `shared_by`: more than one process keeps it.
  Ema(const torch::nn::Module& model, double decay, const Place& shared_by = {});
  void update(std::int64_t step);
  // The average by the names of the model's parameters and buffers; shared, the parameters are rows() instead.
  [[nodiscard]] NamedTensors state() const;
  [[nodiscard]] PrefixedRows rows() const;
  [[nodiscard]] NamedTensors shapes() const;  // tensors with the names, shapes and types of all of it

  void restart();  // the average is the weights of now
  // Swaps the average with the weights, on all processes: once to evaluate it, once to go on.
  void swap();
  [[nodiscard]] bool shared() const { return row_.has_value(); }

 private:
  double decay_;
  Place place_;
  NamedTensors weights_;                       // parameters, then buffers
  std::vector<torch::Tensor> live_, average_;  // the same, of parameters this process's parts
  std::size_t params_ = 0;                     // of live_
  std::optional<ShardedRow> row_;
};

}  // namespace mhla::train
