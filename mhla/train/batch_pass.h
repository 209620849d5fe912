// One batch forward and backward. With `cuda_graph` it is recorded once as a CUDA graph and replayed from then on: a
// small model otherwise waits for the host, which launches its kernels one by one. Batches of another shape than the
// recorded one go kernel by kernel, as do the first few, in which libraries set themselves up.
#pragma once

#include <memory>

#include "mhla/train/options.h"
#include "mhla/train/task.h"

namespace mhla::train {

// Whether a step has several microbatches, of this process or of others: gradients of sums are added up then, and
// divided by all samples at the end.
bool sums_losses(const TrainOptions& options);

class BatchPass {
 public:
  // Throws mhla::Error where `options` ask for a graph and there can be none.
  BatchPass(Task& task, const TrainOptions& options, const torch::Device& device);
  ~BatchPass();
  BatchPass(const BatchPass&) = delete;
  BatchPass& operator=(const BatchPass&) = delete;

  // Gradients of the loss are added to those of the parameters: of its mean, or of its sum where a step has more
  // batches than this one (sums_losses). The
  // result is without its graph, and good until the next call.
  BatchResult operator()(const TrainBatch& batch);
  [[nodiscard]] bool replayed() const { return replayed_; }  // the last batch

 private:
  struct Recording;
  BatchResult work(const TrainBatch& batch);

  Task& task_;
  TrainOptions options_;
  torch::Device device_;
  std::unique_ptr<Recording> recording_;
  std::vector<std::int64_t> last_kind_;
  int alike_ = 0;  // batches in a row of that kind
  bool replayed_ = false;
};

}  // namespace mhla::train
