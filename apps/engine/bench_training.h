// A training step as `mhla bench model` times it: forward, loss, backward, norm of the gradients, AdamW, constraint.
// With `cuda_graph`, forward and backward are one graph, as in `mhla train --cuda-graph`.
#pragma once

#include "apps/engine/bench_model.h"

namespace mhla::apps {

struct TrainingStep {
  torch::nn::Module& module;
  std::function<torch::Tensor()> loss;  // called under autocast
  std::function<void()> constrain;
};

Measured measure_training(const BenchModelRequest& bench, const torch::Device& device, const TrainingStep& step);

}  // namespace mhla::apps
