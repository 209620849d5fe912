// A diffusion task made of options and data, and one that a signal stops, for tests.
#pragma once

#include "mhla/train/diffusion/diffusion_task.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {

struct MadeDiffusion {
  MadeDiffusion(const DiffusionOptions& o, DiffusionSource from)
      : source(std::move(from)), network(network_of(o, source)), options(resolved(o, network, source)) {
    prepare(options.train);
    task = std::make_unique<DiffusionTask>(options, source, network);
  }
  DiffusionSource source;
  NetworkConfig network;
  DiffusionOptions options;
  std::unique_ptr<DiffusionTask> task;
};

// Gets Ctrl-C before the batch `at`.
struct StoppedDiffusion : DiffusionTask {
  using DiffusionTask::DiffusionTask;
  TrainBatch next_batch() override {
    if (count++ == at) std::raise(SIGINT);
    return DiffusionTask::next_batch();
  }
  std::int64_t count = 0, at = -1;
};

inline TrainResult train_made(const MadeDiffusion& made, const std::filesystem::path& folder, bool resume,
                              std::int64_t stop_at, Rows& rows,
                              const std::function<void(DiffusionTask&)>& change = {}) {
  prepare(made.options.train);
  StoppedDiffusion task(made.options, made.source, made.network);
  task.at = stop_at;
  if (change) change(task);
  return Trainer(task, made.options.train, folder, options_to_json(made.options), rows).run(resume);
}

}  // namespace mhla::train
