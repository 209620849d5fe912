// What is trained: a model, its data and its loss. The trainer knows this interface alone, so that image classifiers,
// language models and diffusion models share one loop, one kind of checkpoint and one log.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/codecs/image.h"
#include "mhla/io/json.h"
#include "mhla/train/torch.h"

namespace mhla::train {

// What the loss of a batch is computed from: tensors where the model is, and in host memory what the host itself reads.
struct TrainBatch {
  std::vector<torch::Tensor> inputs;  // their order is the task's; undefined: not given
  std::int64_t weight = 0;            // samples: images, or tokens
};

// The loss of one batch and what else is worth a line, all where the model is, so that nothing waits for a GPU.
struct BatchResult {
  torch::Tensor loss;                                       // [] f32, a mean over the samples, with its graph
  std::vector<std::pair<std::string, torch::Tensor>> sums;  // [] each, over the samples; the log shows sum / weight
};

using Metrics = std::vector<std::pair<std::string, double>>;

// What an evaluation tells while it runs: samples done, of how many.
using EvalProgress = std::function<void(std::int64_t done, std::int64_t of)>;

// The number of an evaluation that says which weights of a run are the best.
struct MainMetric {
  std::string name;
  bool larger_is_better = true;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual torch::nn::Module& model() = 0;
  [[nodiscard]] virtual JsonValue model_config() const = 0;  // config.json beside the weights
  [[nodiscard]] virtual const char* samples() const = 0;     // what a sample is: "images", "tokens"
  // How many processes count a sample in the weights of their batches: more than one where they share it.
  [[nodiscard]] virtual int counted_by() const { return 1; }
  // Files that the model is of little use without: names of classes, the tokenizer. `folder` is that of the run.
  virtual void write_companions(const std::filesystem::path& folder) const { (void)folder; }

  [[nodiscard]] virtual std::int64_t batches_per_epoch() const = 0;
  virtual TrainBatch next_batch() = 0;                       // of the training data
  virtual BatchResult forward(const TrainBatch& batch) = 0;  // the model is in training mode
  // Why forward() must run on the host for every batch and cannot become a CUDA graph; empty: it can.
  [[nodiscard]] virtual std::string why_not_recorded() const { return {}; }
  // Where the training data goes on: saved in checkpoints. seek() comes before the first next_batch().
  [[nodiscard]] virtual JsonValue cursor() const = 0;
  virtual void seek(const JsonValue& cursor) = 0;

  // What a line of the log says besides, from its mean loss and the samples a second: perplexity, use of the machine.
  [[nodiscard]] virtual Metrics derived(double loss, double samples_per_s) const {
    (void)loss, (void)samples_per_s;
    return {};
  }

  // What the first line of a run says besides: where its test data come from. Empty: nothing.
  [[nodiscard]] virtual std::string tested_on() const { return {}; }

  virtual void constrain() = 0;  // after a step: what must hold for the weights
  // On held-out data; the model is in evaluation mode, gradients are off. Calls leave_when_stopped() and `progress` for
  // every batch.
  virtual Metrics evaluate(const EvalProgress& progress) = 0;
  [[nodiscard]] virtual MainMetric main_metric() const = 0;  // of evaluate(), which may have none
  // A picture of what the model can do, such as a sheet of samples, made every so many steps; 0: none. The model is in
  // evaluation mode with the running average of its weights, where there is one.
  [[nodiscard]] virtual std::int64_t picture_every(std::int64_t total_steps) const {
    (void)total_steps;
    return 0;
  }
  virtual Image picture(const EvalProgress& progress) {
    (void)progress;
    return {};
  }
  // What the data had to say since the last call (images left out); goes to the log and the screen.
  virtual std::vector<std::string> take_warnings() { return {}; }
};

}  // namespace mhla::train
