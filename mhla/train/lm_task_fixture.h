// A run of `mhla train lm` for tests, and one that is stopped.
#pragma once

#include <csignal>

#include "mhla/train/lm_task.h"
#include "mhla/train/tiny_task_fixture.h"
#include "mhla/train/trainer.h"

namespace mhla::train {

// A signal behind a step.
struct StopAt : Rows {
  std::int64_t step = -1;
  void row(const JsonValue& given) override {
    Rows::row(given);
    if (given.at("kind").as_string() == "step" && given.at("step").as_int() == step) std::raise(SIGTERM);
  }
};

// As a program does it: from the options to the end.
inline TrainResult train_lm(const LmOptions& given, const std::filesystem::path& folder, Rows& rows,
                            bool resume = false) {
  check(given);
  LmDataPtr data = open_data(given, folder.string(), [](const std::string&) {});
  const LmConfig network = network_of(given, *data);
  const LmOptions options = resolved(given, network);
  prepare(options.train);
  LmTask task(options, std::move(data), network);
  Trainer trainer(task, options.train, folder, fields_to_json(options), rows);
  return trainer.run(resume);
}

}  // namespace mhla::train
