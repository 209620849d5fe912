// The training loop of every task. A run is a folder:
//   train.json         every option, as resolved
//   config.json        the model; with model.safetensors (and ema.safetensors) what is left at the end
//   classes.json       or tokenizer.json and tokenizer.fingerprint, generation.json: what goes with the model
//                      (Task::write_companions)
//   best.safetensors   the weights of the best evaluation so far (best.h)
//   log.jsonl          and events.out.tfevents.*: the log (run_log.h)
//   samples/           step-00000500.png and so on: pictures that the task made (Task::picture)
//   checkpoints/       step-00000500/ and so on: model, optimiser, averages, generators, data cursor
//                      (runs/checkpoints.h)
// A run that was interrupted anywhere and resumed on the CPU has the bits of one that was not.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "mhla/core/run_failed.h"
#include "mhla/io/json.h"
#include "mhla/train/observer.h"
#include "mhla/train/options.h"
#include "mhla/train/run_start.h"
#include "mhla/train/task.h"

namespace mhla::train {

struct TrainResult {
  std::int64_t step = 0;
  std::string stopped;  // the signal that ended the run early, or empty
  Metrics metrics;      // of the last evaluation
};

class Trainer {
 public:
  // The model is on its device and in f32. `run_config` is written as train.json.
  Trainer(Task& task, const TrainOptions& options, std::filesystem::path folder, JsonValue run_config,
          Observer& observer);
  ~Trainer();
  TrainResult run(const RunStart& start);
  TrainResult run(bool resume) { return run(RunStart{.resume = resume}); }
  [[nodiscard]] std::int64_t total_steps() const;

 private:
  struct Loop;
  std::unique_ptr<Loop> loop_;
};

// Optimiser steps of a whole run, by max_steps or epochs.
std::int64_t total_steps(const Task& task, const TrainOptions& options);
// "cpu", "cuda" or "cuda:N", which must be there.
torch::Device device_of(const std::string& name);
// Refuses bf16 on a CPU that has no instructions for it.
void expect_precision(const std::string& command, const std::string& precision, const torch::Device& device);
// Threads, deterministic algorithms and the seed of LibTorch's generators: before the model is made. Returns why there
// are fewer threads than the options ask for, or nothing.
std::string prepare(const TrainOptions& options);

// bf16 autocast for a device, while it lives.
class Autocast {
 public:
  Autocast(const TrainOptions& options, const torch::Device& device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool on_;
  torch::DeviceType device_;
};

}  // namespace mhla::train
