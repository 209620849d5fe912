// Checkpoints by the clock, and the weights of the best evaluation: which ones they are, that a run which is resumed
// keeps them, and that neither changes what is learned.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"
#include "mhla/train/best.h"
#include "mhla/train/runs/checkpoints.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

// Evaluations of the steps 4, 8, ... 24 give these numbers, the n-th of them the n-th.
struct Scripted : TinyTask {
  Metrics evaluate(const EvalProgress& progress) override {
    const Metrics real = TinyTask::evaluate(progress);  // which may leave
    return {{name, values.at(static_cast<std::size_t>(next++))}};
  }
  [[nodiscard]] MainMetric main_metric() const override { return {"top1", larger}; }
  std::vector<double> values;
  std::string name = "top1";
  bool larger = true;
  int next = 0;
};

TrainOptions scripted_options() {
  TrainOptions options = tiny_options();
  options.ema = 0, options.eval_steps = 4, options.checkpoint_every = 4, options.keep = 100;
  return options;
}

void run_scripted(const fs::path& folder, Scripted& task, const TrainOptions& options, Rows& rows,
                  bool resume = false) {
  prepare(options);
  Trainer(task, options, folder, JsonValue::object(), rows).run(resume);
}

std::vector<std::int64_t> best_steps(const Rows& rows) {
  std::vector<std::int64_t> steps;
  for (const JsonValue& row : rows.rows)
    if (row.at("kind").as_string() == "best") steps.push_back(row.at("step").as_int());
  return steps;
}

void expect_weights_of_step(const fs::path& folder, std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%08d", static_cast<int>(step));
  const Safetensors best = Safetensors::read(folder / kBestFile);
  const Safetensors kept = Safetensors::read(folder / "checkpoints" / name / "model.safetensors");
  ASSERT_EQ(best.size(), kept.size());
  for (std::size_t i = 0; i < best.size(); ++i) {
    const ConstView a = best.view(i), b = kept.view(*kept.find(best.entry(i).name));
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(best.entry(i).bytes)), 0) << best.entry(i).name;
  }
}

TEST(TrainerBest, KeepsTheWeightsOfTheBestEvaluation) {
  const TemporaryRun run;
  struct Case {
    std::vector<double> values;
    bool larger;
    std::vector<std::int64_t> steps;
  };
  for (const Case& c :
       {Case{{0.1, 0.5, 0.5, 0.2, 0.6, 0.3}, true, {4, 8, 20}}, Case{{3.0, 2.0, 2.5, 2.5, 9.0, 2.0}, false, {4, 8}}}) {
    Scripted task;
    task.values = c.values, task.larger = c.larger;
    Rows rows;
    const fs::path folder = run.path(str("case", c.steps.size(), c.larger));
    run_scripted(folder, task, scripted_options(), rows);
    EXPECT_EQ(best_steps(rows), c.steps);
    expect_weights_of_step(folder, c.steps.back());
    const std::optional<Best> best = read_best(folder / kBestFile, "top1");
    ASSERT_TRUE(best);
    EXPECT_EQ(best->step, c.steps.back());
    EXPECT_EQ(best->value, c.values.at(static_cast<std::size_t>(c.steps.back() / 4 - 1)));
    EXPECT_EQ(best->weights, "model");
    EXPECT_FALSE(read_best(folder / kBestFile, "loss"));
  }
}

TEST(TrainerBest, WhatIsNoNumberIsNeverBest) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const MainMetric top1{"top1"};
  EXPECT_FALSE(best_of(top1, 4, {{"top1", none}}, {}));
  EXPECT_EQ(best_of(top1, 4, {{"top1", none}}, {{"top1", 0.1}})->weights, "ema");
  EXPECT_EQ(best_of(top1, 4, {{"top1", 0.1}}, {{"top1", 0.1}})->weights, "model");
}

TEST(TrainerBest, NothingIsKeptWhereNothingIsMeasuredOrAskedFor) {
  const TemporaryRun run;
  Scripted other;
  other.values = {1, 2, 3, 4, 5, 6}, other.name = "loss";
  Rows rows;
  run_scripted(run.path("other"), other, scripted_options(), rows);
  EXPECT_FALSE(fs::exists(run.path("other") / kBestFile));
  Scripted off;
  off.values = other.values;
  TrainOptions options = scripted_options();
  options.keep_best = false;
  run_scripted(run.path("off"), off, options, rows);
  EXPECT_FALSE(fs::exists(run.path("off") / kBestFile));
}

TEST(TrainerBest, TheAverageIsKeptWhereItIsBetter) {
  const TemporaryRun run;
  TrainOptions options = scripted_options();
  options.ema = 0.5, options.eval_steps = 12;
  Scripted task;
  task.values = {0.3, 0.4, 0.1, 0.2};  // weights and average of step 12, of step 24
  Rows rows;
  run_scripted(run.path(), task, options, rows);
  EXPECT_EQ(best_steps(rows), std::vector<std::int64_t>{12});
  EXPECT_EQ(read_best(run.path() / kBestFile, "top1")->weights, "ema");
  const Safetensors best = Safetensors::read(run.path() / kBestFile);
  const Safetensors kept = Safetensors::read(run.path() / "checkpoints/step-00000012/trainer.safetensors");
  const ConstView a = best.view(*best.find("embed.weight")), b = kept.view(*kept.find("ema.embed.weight"));
  EXPECT_EQ(std::memcmp(a.data, b.data, 6 * 8 * sizeof(float)), 0);
}

TEST(TrainerBest, AResumedRunKeepsTheBestSoFar) {
  const TemporaryRun run;
  TrainOptions options = scripted_options();
  options.checkpoint_every = 6;
  Scripted cut;
  cut.values = {0.1, 0.5}, cut.poison_at = 9;  // ends at step 10: the best is of step 8, the checkpoint of step 6
  Rows rows;
  EXPECT_ANY_THROW(run_scripted(run.path(), cut, options, rows));
  ASSERT_EQ(read_best(run.path() / kBestFile, "top1")->step, 8);
  Scripted rest;
  rest.values = {0.5, 0.2, 0.3, 0.5, 0.4};  // of step 8 again, then 12 to 24
  Rows more;
  run_scripted(run.path(), rest, options, more, /*resume=*/true);
  EXPECT_EQ(best_steps(more), std::vector<std::int64_t>{8});  // its row was cut off with the rest of the log
  EXPECT_EQ(read_best(run.path() / kBestFile, "top1")->value, 0.5);
}

TEST(TrainerBest, MinutesOnlyAddCheckpoints) {
  const TemporaryRun run;
  train_tiny(run.path("plain"), tiny_options());
  TrainOptions options = tiny_options();
  options.checkpoint_every = 0, options.checkpoint_minutes = 1e-9, options.keep = 2;
  Rows rows;
  train_tiny(run.path("often"), options, false, {}, &rows);
  int checkpoints = 0;
  for (const JsonValue& row : rows.rows) checkpoints += row.at("kind").as_string() == "checkpoint" ? 1 : 0;
  EXPECT_EQ(checkpoints, 24);
  EXPECT_EQ(CheckpointFolder(run.path("often") / "checkpoints", 2).list().size(), 2u);
  for (const char* name : {"model.safetensors", "ema.safetensors", "best.safetensors"})
    EXPECT_TRUE(read_file(run.path("often") / name) == read_file(run.path("plain") / name)) << name;
  options.checkpoint_minutes = 0;
  Rows seldom;
  train_tiny(run.path("seldom"), options, false, {}, &seldom);
  EXPECT_EQ(CheckpointFolder(run.path("seldom") / "checkpoints", 2).list().size(), 1u);
  options.checkpoint_minutes = -1;
  EXPECT_EQ(message_of([&] { check(options); }), "train: checkpoint_minutes is -1, expected 0 or more");
}

}  // namespace
}  // namespace mhla::train
