// The loop on a tiny task: it learns, resumes to the same bits from wherever it was stopped, accumulates, logs, and
// ends with a clear message when the loss is NaN or infinite or the disk is full.
#include "mhla/train/trainer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/file.h"
#include "mhla/ops/linear.h"
#include "mhla/testing/messages.h"
#include "mhla/train/run_lock.h"
#include "mhla/train/runs/checkpoints.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Everything a run leaves that has no clock in it.
void expect_same_run(const fs::path& got, const fs::path& want) {
  for (const char* name : {"model.safetensors", "ema.safetensors", "checkpoints/step-00000024/model.safetensors",
                           "checkpoints/step-00000024/trainer.safetensors"})
    EXPECT_TRUE(read_file(got / name) == read_file(want / name)) << name;
  const JsonValue a = read_json(got / "checkpoints/step-00000024/state.json");
  const JsonValue b = read_json(want / "checkpoints/step-00000024/state.json");
  EXPECT_EQ(write_json(a.at("cursor")), write_json(b.at("cursor")));
}

// The rows of log.jsonl without what a clock wrote.
std::vector<std::string> logged(const fs::path& folder) {
  std::vector<std::string> rows;
  std::ifstream file(folder / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    const JsonValue row = parse_json(line, "log");
    const std::string& kind = row.at("kind").as_string();
    if (kind != "step" && kind != "eval") continue;
    JsonValue kept;
    for (const JsonValue::Member& member : row.members()) {
      if (member.key != "images_per_s" && member.key != "eta_s" && member.key != "seconds")
        kept.set(member.key, member.value);
    }
    rows.push_back(write_json(kept));
  }
  return rows;
}

TEST(Trainer, LearnsAndLeavesARun) {
  const TemporaryRun run;
  TrainOptions options = tiny_options();
  options.max_steps = 200, options.checkpoint_every = 50;
  Rows rows;
  const TrainResult result = train_tiny(run.path(), options, false, {}, &rows);
  EXPECT_EQ(result.step, 200);
  EXPECT_EQ(result.stopped, "");
  ASSERT_EQ(result.metrics.size(), 2u);
  EXPECT_EQ(result.metrics[0].first, "top1");
  EXPECT_EQ(result.metrics[1].first, "ema_top1");
  EXPECT_GE(result.metrics[0].second, 0.75);
  double first = 0, last = 0;
  int steps = 0;
  for (const JsonValue& row : rows.rows) {
    if (row.at("kind").as_string() != "step") continue;
    last = row.at("loss").as_double();
    if (steps++ == 0) first = last;
    EXPECT_GE(row.at("accuracy").as_double(), 0.0);
    EXPECT_EQ(row.at("twice_loss").as_double(), 2 * last);
    EXPECT_GT(row.at("images_per_s").as_double(), 0.0);
  }
  EXPECT_EQ(steps, 67);  // every third step and the last
  EXPECT_LT(last, 0.5 * first);
  for (const char* name : {"train.json", "config.json", "log.jsonl", "model.safetensors", "ema.safetensors"})
    EXPECT_TRUE(fs::exists(run.path() / name)) << name;
  CheckpointFolder folder(run.path() / "checkpoints", 3);
  EXPECT_EQ(folder.list().size(), 3u);
  EXPECT_EQ(read_file(run.path() / "model.safetensors"),
            read_file(run.path() / "checkpoints/step-00000200/model.safetensors"));
}

TEST(Trainer, EvaluatesByEpochsOrBySteps) {
  const auto evaluated = [](std::int64_t every, std::int64_t steps) {
    const TemporaryRun run;
    TrainOptions options = tiny_options();
    options.eval_every = every, options.eval_steps = steps;
    Rows rows;
    train_tiny(run.path(), options, false, {}, &rows);
    std::vector<std::int64_t> at;
    for (const JsonValue& row : rows.rows) {
      if (row.at("kind").as_string() == "eval") at.push_back(row.at("step").as_int());
    }
    return at;
  };
  using Steps = std::vector<std::int64_t>;  // of 24, ten an epoch
  EXPECT_EQ(evaluated(1, 0), (Steps{10, 20, 24}));
  EXPECT_EQ(evaluated(1, 7), (Steps{7, 14, 21, 24}));
  EXPECT_EQ(evaluated(0, 0), Steps{24});
}

TEST(Trainer, ARepeatedRunHasTheSameBitsAndAnotherSeedHasNot) {
  const TemporaryRun run;
  train_tiny(run.path("a"), tiny_options());
  train_tiny(run.path("b"), tiny_options());
  expect_same_run(run.path("b"), run.path("a"));
  TrainOptions other = tiny_options();
  other.seed = 8;
  train_tiny(run.path("c"), other);
  EXPECT_FALSE(read_file(run.path("c") / "model.safetensors") == read_file(run.path("a") / "model.safetensors"));
}

TEST(Trainer, StoppedAnywhereAndResumedIsTheUnbrokenRun) {
  const TemporaryRun run;
  train_tiny(run.path("whole"), tiny_options());
  for (const std::int64_t at : {0, 3, 10, 23}) {  // before a checkpoint, on one, inside a window of the log, at the end
    const fs::path folder = run.path("cut" + std::to_string(at));
    Rows rows;
    const TrainResult cut = train_tiny(
        folder, tiny_options(), false, [&](TinyTask& task) { task.raise_at = at; }, &rows);
    EXPECT_EQ(cut.stopped, "SIGTERM");
    EXPECT_EQ(cut.step, at + 1);
    EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
    const TrainResult rest = train_tiny(folder, tiny_options(), true);
    EXPECT_EQ(rest.step, 24);
    expect_same_run(folder, run.path("whole"));
    EXPECT_EQ(logged(folder), logged(run.path("whole"))) << at;
  }
}

TEST(Trainer, ASignalDoesNotWaitForAnEvaluation) {
  const TemporaryRun run;
  train_tiny(run.path("whole"), tiny_options());
  for (const std::int64_t at : {1, 2, 4, 5, 6}) {  // after steps 10, 20 and 24, each with the weights and their average
    const fs::path folder = run.path("cut" + std::to_string(at));
    const TrainResult cut =
        train_tiny(folder, tiny_options(), false, [&](TinyTask& task) { task.raise_in_evaluation = at; });
    EXPECT_EQ(cut.stopped, "SIGTERM");
    EXPECT_EQ(cut.step, at <= 2 ? 10 : at == 4 ? 20 : 24);
    EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
    EXPECT_EQ(train_tiny(folder, tiny_options(), true).stopped, "");
    expect_same_run(folder, run.path("whole"));
    EXPECT_EQ(logged(folder), logged(run.path("whole"))) << at;
  }
}

TEST(Trainer, ResumesFromAnEarlierCheckpointWhenTheNewestIsDamaged) {
  const TemporaryRun run;
  train_tiny(run.path("whole"), tiny_options());
  const fs::path folder = run.path("cut");
  train_tiny(folder, tiny_options(), false, [](TinyTask& task) { task.raise_at = 13; });
  write_file(folder / "checkpoints/step-00000014/model.safetensors", std::string("damaged"));
  Rows rows;
  train_tiny(folder, tiny_options(), true, {}, &rows);
  EXPECT_EQ(rows.rows.at(0).at("kind").as_string(), "warning");
  EXPECT_TRUE(has(rows.rows.at(0).at("text").as_string(), "step-00000014: damaged: model.safetensors has 7 bytes"));
  EXPECT_TRUE(has(rows.rows.at(1).at("resumed").as_string(), "step-00000012"));
  expect_same_run(folder, run.path("whole"));
}

TEST(Trainer, AStateThatNoTrainerWroteIsRefusedByItsFile) {
  const TemporaryRun run;
  train_tiny(run.path(), tiny_options(), false, [](TinyTask& task) { task.raise_at = 5; });
  const fs::path checkpoint = run.path() / "checkpoints/step-00000006";
  const JsonValue state = read_json(checkpoint / "state.json");
  for (const auto& [wrong, says] : std::vector<std::pair<JsonValue, std::string>>{
           {JsonValue(state).set("evaluated", "yes"), "JSON value is a string, expected a boolean"},
           {JsonValue(state).set("log_bytes", -1), "JSON value is -1, expected an integer of at least 0"},
           {JsonValue(state).set("cursor", JsonValue::array()), "JSON value is an array, expected an object"},
           {JsonValue::array(), "JSON value is an array, expected an object"}}) {
    CheckpointFolder(run.path() / "checkpoints", 3).save(6, [&](const fs::path& to) {  // with checksums that fit
      for (const fs::directory_entry& file : fs::directory_iterator(checkpoint))
        if (file.path().filename() != "checkpoint.json") fs::copy(file.path(), to);
      write_file(to / "state.json", write_json(wrong));
    });
    EXPECT_EQ(message_of([&] { train_tiny(run.path(), tiny_options(), true); }),
              (checkpoint / "state.json").string() + ": " + says);
  }
}

TEST(Trainer, AccumulatedBatchesAreOneLargeBatch) {
  // The same eight samples, once as one batch and once as two halves that are weighted by their sizes.
  struct Halves : TinyTask {
    explicit Halves(bool split) : TinyTask(8), split_(split) {}
    TrainBatch next_batch() override {
      at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(count_ / (split_ ? 2 : 1)));
      const torch::Tensor x = torch::randn({8, 16, 6}, generator),
                          label = torch::randint(4, {8}, generator, torch::kLong);
      const std::int64_t begin = split_ && count_ % 2 == 1 ? 3 : 0, end = split_ && count_ % 2 == 0 ? 3 : 8;
      ++count_;
      return {.inputs = {x.slice(0, begin, end), label.slice(0, begin, end)}, .weight = end - begin};
    }
    BatchResult forward(const TrainBatch& batch) override {
      auto* net = dynamic_cast<TinyModelImpl*>(&model());
      net->eval();  // no dropout
      return {.loss = torch::cross_entropy_loss(net->forward(batch.inputs[0]), batch.inputs[1]), .sums = {}};
    }
    bool split_;
    std::int64_t count_ = 0;
  };
  const TemporaryRun run;
  std::vector<torch::Tensor> weights;
  for (const bool split : {false, true}) {
    TrainOptions options = tiny_options();
    options.max_steps = 5, options.accumulate = split ? 2 : 1, options.adam_eps = 1e-3, options.clip_norm = 0.1;
    prepare(options);
    Halves task(split);
    Rows rows;
    Trainer(task, options, run.path(split ? "split" : "whole"), JsonValue::object(), rows).run(false);
    weights.push_back(task.model().named_parameters()["embed.weight"].detach().clone());
  }
  EXPECT_LT((weights[0] - weights[1]).abs().max().item<double>(), 1e-5);
}

TEST(Trainer, ALossThatIsNoNumberEndsTheRunBeforeTheUpdate) {
  const TemporaryRun run;
  std::string message;
  try {
    train_tiny(run.path(), tiny_options(), false, [](TinyTask& task) { task.poison_at = 9; });
  } catch (const RunFailed& failed) {
    message = failed.what();
  }
  EXPECT_TRUE(has(message, "the loss is not finite at step 10 (loss nan, learning rate 0.00")) << message;
  EXPECT_TRUE(has(message, "gradients are not finite, the first is embed.weight (norm nan)")) << message;
  EXPECT_TRUE(has(message, "last good checkpoint: " + (run.path() / "checkpoints/step-00000008").string())) << message;
  EXPECT_TRUE(has(text_of(run.path() / "log.jsonl"), "\"kind\": \"failed\""));
  EXPECT_EQ(train_tiny(run.path(), tiny_options(), true).step, 24);  // the checkpoint goes on
}

TEST(Trainer, InBf16OnACpuItLearnsStopsAndResumesWithTheSameBits) {
  if (const std::string why = ops::cpu_bf16_fit(); !why.empty()) GTEST_SKIP() << why;
  TrainOptions options = tiny_options();
  options.precision = "bf16", options.max_steps = 200, options.checkpoint_every = 50, options.threads = 2;
  const TemporaryRun run, unbroken;
  EXPECT_EQ(train_tiny(run.path(), options, false, [](TinyTask& task) { task.raise_at = 77; }).step, 78);
  const TrainResult whole = train_tiny(run.path(), options, true);
  EXPECT_GE(whole.metrics.at(0).second, 0.75);
  train_tiny(unbroken.path(), options);
  EXPECT_EQ(text_of(run.path() / "model.safetensors"), text_of(unbroken.path() / "model.safetensors"));
  options.precision = "f32";
  const TemporaryRun wide;
  train_tiny(wide.path(), options);
  EXPECT_NE(text_of(wide.path() / "model.safetensors"), text_of(unbroken.path() / "model.safetensors"));
}

TEST(Trainer, OnAGpuItLearnsStopsAndResumes) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  for (const char* precision : {"f32", "bf16"}) {
    const TemporaryRun run;
    TrainOptions options = tiny_options();
    options.device = "cuda", options.precision = precision, options.max_steps = 200, options.checkpoint_every = 50;
    const TrainResult cut = train_tiny(run.path(), options, false, [](TinyTask& task) { task.raise_at = 77; });
    EXPECT_EQ(cut.step, 78) << precision;
    const TrainResult whole = train_tiny(run.path(), options, true);
    EXPECT_EQ(whole.step, 200) << precision;
    EXPECT_GE(whole.metrics.at(0).second, 0.75) << precision;
    EXPECT_EQ(logged(run.path()).size(), 67u + 20u) << precision;  // every third step, every epoch
    const std::string message =
        message_of([&] { train_tiny(run.path("bad"), options, false, [](TinyTask& task) { task.poison_at = 60; }); });
    EXPECT_TRUE(has(message, "the loss is not finite at step 61")) << message;
    EXPECT_TRUE(has(message, "checkpoints/step-00000050")) << message;
  }
}

TEST(Trainer, BeyondAnEarlierEndItsWeightsAreNotTheRuns) {
  const TemporaryRun run;
  TrainOptions options = tiny_options();
  options.max_steps = 8;
  train_tiny(run.path(), options);
  EXPECT_TRUE(fs::exists(run.path() / "model.safetensors"));
  train_tiny(run.path(), tiny_options(), true, [](TinyTask& task) { task.raise_at = 12; });
  EXPECT_FALSE(fs::exists(run.path() / "model.safetensors"));
  EXPECT_FALSE(fs::exists(run.path() / "ema.safetensors"));
}

TEST(Trainer, AFolderThatWentAwayIsNotMadeAgain) {
  const TemporaryRun run;
  struct Removing : TinyTask {
    TrainBatch next_batch() override {
      if (count_++ == 5) fs::remove_all(folder);
      return TinyTask::next_batch();
    }
    fs::path folder;
    int count_ = 0;
  };
  prepare(tiny_options());
  Removing task;
  task.folder = run.path();
  Rows rows;
  Trainer trainer(task, tiny_options(), run.path(), JsonValue::object(), rows);
  EXPECT_ANY_THROW(trainer.run(false));
  EXPECT_FALSE(fs::exists(run.path()));
}

TEST(Trainer, AnEvaluationThatFailsLosesNothing) {
  const TemporaryRun run;
  struct Failing : TinyTask {
    Metrics evaluate(const EvalProgress& progress) override {
      if (left-- == 0) fail("nothing to evaluate on");
      return TinyTask::evaluate(progress);
    }
    int left = 0;
  };
  TrainOptions options = tiny_options();
  options.checkpoint_every = 5;
  train_tiny(run.path("whole"), options);
  for (const int good : {0, 2}) {  // the one of step 10, of the end
    const fs::path folder = run.path(str("failed", good));
    prepare(options);
    Failing task;
    task.left = good * 2;  // of the weights and of their average
    Rows rows;
    Trainer trainer(task, options, folder, JsonValue().set("seed", options.seed), rows);
    EXPECT_TRUE(has(message_of([&] { trainer.run(false); }), "nothing to evaluate on"));
    EXPECT_TRUE(fs::exists(folder / (good == 0 ? "checkpoints/step-00000010" : "checkpoints/step-00000024")));
    train_tiny(folder, options, true);
    EXPECT_EQ(logged(folder), logged(run.path("whole")));
    expect_same_run(folder, run.path("whole"));
  }
}

TEST(Trainer, RefusesWhatDoesNotFit) {
  const TemporaryRun run;
  train_tiny(run.path(), tiny_options(), false, [](TinyTask& task) { task.raise_at = 5; });
  EXPECT_TRUE(has(message_of([&] { train_tiny(run.path(), tiny_options()); }),
                  "has a run already (step-00000006), expected --resume, --overwrite or another folder"));
  TrainOptions no_average = tiny_options();
  no_average.ema = 0;
  EXPECT_TRUE(has(message_of([&] { train_tiny(run.path(), no_average, true); }),
                  "ema is 0, but the checkpoint has an average"));
  TrainOptions shorter = tiny_options();
  shorter.max_steps = 5;
  EXPECT_TRUE(has(message_of([&] { train_tiny(run.path(), shorter, true); }), "is at step 6, expected at most the 5"));
  struct Other : TinyTask {
    [[nodiscard]] JsonValue model_config() const override { return JsonValue().set("model", "other"); }
  } other;
  Rows rows;
  Trainer trainer(other, tiny_options(), run.path(), JsonValue::object(), rows);
  EXPECT_TRUE(has(message_of([&] { trainer.run(true); }), "is a checkpoint of another model"));
  {
    const RunLock lock(run.path());
    EXPECT_EQ(message_of([&] { train_tiny(run.path(), tiny_options(), true); }),
              run.path().string() + ": another process is training in this folder");
  }
  train_tiny(run.path("done"), tiny_options());
  fs::remove_all(run.path("done") / "checkpoints");
  EXPECT_TRUE(
      has(message_of([&] { train_tiny(run.path("done"), tiny_options()); }), "has a run already (model.safetensors)"));
  write_file(run.path("file"), std::string("no folder"));
  EXPECT_TRUE(has(message_of([&] { train_tiny(run.path("file") / "run", tiny_options()); }), "Not a directory"));
}

TEST(Trainer, AFullDiskEndsTheRunAndLeavesTheCheckpoints) {
  const TemporaryRun run;
  struct Filling : Rows {  // after the second checkpoint no file may be longer than 3000 bytes
    void row(const JsonValue& row) override {
      if (row.at("kind").as_string() != "checkpoint" || row.at("step").as_int() != 8) return;
      rlimit small = kept;
      small.rlim_cur = 3000;
      setrlimit(RLIMIT_FSIZE, &small);
    }
    rlimit kept{};
  } filling;
  getrlimit(RLIMIT_FSIZE, &filling.kept);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  std::string message;
  try {
    train_tiny(run.path(), tiny_options(), false, {}, &filling);
  } catch (const RunFailed& failed) {
    message = failed.what();
  }
  setrlimit(RLIMIT_FSIZE, &filling.kept);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(has(message, "could not be written: File too large")) << message;
  EXPECT_TRUE(has(message, "last good checkpoint: " + (run.path() / "checkpoints/step-00000008").string())) << message;
  std::vector<std::string> complaints;
  const CheckpointFolder folder(run.path() / "checkpoints", 3);
  EXPECT_EQ(folder.list().size(), 2u);
  EXPECT_EQ(folder.newest(complaints)->step, 8);
  EXPECT_TRUE(complaints.empty());
  EXPECT_EQ(train_tiny(run.path(), tiny_options(), true).step, 24);
}

TEST(Trainer, AFolderThatGoesAwayEndsTheRun) {
  const TemporaryRun run;
  struct Removing : Rows {
    explicit Removing(fs::path given) : path(std::move(given)) {}
    void row(const JsonValue& row) override {
      if (row.at("kind").as_string() == "checkpoint") fs::remove_all(path), write_file(path, std::string("in the way"));
    }
    fs::path path;
  } removing(run.path());
  EXPECT_THROW(train_tiny(run.path(), tiny_options(), false, {}, &removing), RunFailed);
}

}  // namespace
}  // namespace mhla::train
