// A run of `mhla train lm` for tests, one that is stopped, and one that goes on.
#pragma once

#include <gtest/gtest.h>

#include <csignal>

#include "mhla/io/file.h"
#include "mhla/train/lm/lm_task.h"
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

// A run of 12 steps that is stopped behind the seventh and resumed has the weights of one that was not.
inline void expect_resumes_to_the_same_bits(const LmOptions& options, const TemporaryRun& temporary) {
  const std::filesystem::path whole = temporary.path("whole"), broken = temporary.path("broken");
  Rows rows;
  train_lm(options, whole, rows);
  StopAt stops;
  stops.step = 7;
  EXPECT_EQ(train_lm(options, broken, stops).stopped, "SIGTERM");
  EXPECT_EQ(train_lm(options, broken, rows, /*resume=*/true).step, 12);
  EXPECT_TRUE(read_file(whole / "model.safetensors") == read_file(broken / "model.safetensors"));
  std::filesystem::remove_all(whole), std::filesystem::remove_all(broken);
}

}  // namespace mhla::train
