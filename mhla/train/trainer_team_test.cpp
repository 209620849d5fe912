// The trainer on several real processes over loopback: the same bits for every number of them, runs that go on with
// more or fewer, signals, NaN, ranks that die, and what is refused before the first step.
#include <gtest/gtest.h>

#include "mhla/io/file.h"
#include "mhla/train/distributed/team_fixture.h"
#include "mhla/train/ema.h"
#include "mhla/train/runs/run.h"
#include "mhla/train/tiny_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;
using distributed::RankEnd;
using distributed::Team;
using distributed::TeamProcesses;
using distributed::World;

constexpr double kTeamLimit = 150;

TrainOptions team_options() {
  TrainOptions o = tiny_options();
  o.max_steps = 20, o.batch = 16, o.deterministic_reduce = true, o.timeout = 30;
  return o;
}

struct TeamRun {
  fs::path folder;
  TrainOptions options = team_options();
  bool resume = false;
  std::function<void(TinyTask&, const World&)> change = {};
  std::function<void(TrainOptions&, const World&)> differ = {};
  std::function<JsonValue(const World&)> config_of = {};  // the options as they are compared
};

// As the program does it.
std::string train_as(const World& world, const TeamRun& run) {
  TrainOptions options = run.options;
  std::unique_ptr<Team> team = world.alone() ? nullptr : std::make_unique<Team>(world, options.timeout);
  options.place = {.rank = world.rank, .ranks = world.size, .local_ranks = world.size, .maybe_team = team.get()};
  if (run.differ) run.differ(options, world);
  try {
    prepare(options);
    TinyTask task(options);
    if (run.change) run.change(task, world);
    Rows rows;
    JsonValue config = run.config_of ? run.config_of(world) : JsonValue().set("seed", 7).set("batch", 16);
    Trainer trainer(task, options, run.folder, config.set("max_steps", options.max_steps), rows);
    return trainer.run(run.resume).stopped;
  } catch (const distributed::RankFailed& error) {
    if (team) team->leave_with(error.what(), false);
    throw;
  } catch (const std::exception& error) {
    if (team) team->leave_with(error.what(), true, dynamic_cast<const Error*>(&error) != nullptr);
    throw;
  }
}

std::vector<RankEnd> train_on(int ranks, const TeamRun& run) {
  TeamProcesses team(ranks, [&](const World& world) { return train_as(world, run); });
  return team.wait(kTeamLimit);
}

void expect_done(int ranks, const TeamRun& run) {
  for (const RankEnd& end : train_on(ranks, run)) ASSERT_EQ(end.code, 0) << ranks << " ranks: " << end.said;
}

void expect_same_weights(const fs::path& a, const fs::path& b) {
  for (const char* name : {"model.safetensors", "ema.safetensors", "checkpoints/step-00000020/trainer.safetensors"})
    EXPECT_TRUE(read_file(a / name) == read_file(b / name)) << b << " " << name;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(TrainerTeam, TheSameBitsOnAnyNumberOfProcesses) {
  for (const std::int64_t accumulate : {1, 2}) {
    const TemporaryRun folder;
    TeamRun run{.folder = folder.path("one")};
    run.options.accumulate = accumulate;
    expect_done(1, run);
    for (const int ranks : {2, 4, 8}) {
      TeamRun many = run;
      many.folder = folder.path("many" + std::to_string(ranks));
      expect_done(ranks, many);
      expect_same_weights(run.folder, many.folder);
      EXPECT_FALSE(fs::exists(many.folder / "checkpoints/step-00000020.tmp"));
    }
    // The weights moved, and the seed matters.
    TeamRun other = run;
    other.folder = folder.path("other"), other.options.seed = 8;
    expect_done(2, other);
    EXPECT_FALSE(read_file(other.folder / "model.safetensors") == read_file(run.folder / "model.safetensors"));
  }
}

TEST(TrainerTeam, PlainSumsOfTwoRanksAreTheTreeOfTwoLeaves) {
  const TemporaryRun folder;
  TeamRun tree{.folder = folder.path("tree")};
  tree.options.reduce_leaves = 2;
  expect_done(1, tree);
  TeamRun plain{.folder = folder.path("plain")};
  plain.options.deterministic_reduce = false;
  expect_done(2, plain);
  expect_same_weights(tree.folder, plain.folder);
  plain.folder = folder.path("three"), plain.options.batch = 18;  // any number of ranks
  expect_done(3, plain);
}

TEST(TrainerTeam, GoesOnWithMoreOrFewerProcesses) {
  const TemporaryRun folder;
  TeamRun whole{.folder = folder.path("whole")};
  expect_done(1, whole);
  for (const int ranks : {1, 2, 8}) {
    TeamRun part{.folder = folder.path("part" + std::to_string(ranks))};
    part.change = [](TinyTask& task, const World& world) { task.raise_at = world.rank == 1 ? 9 : -1; };
    const std::vector<RankEnd> ends = train_on(4, part);
    for (const RankEnd& end : ends) {  // a signal at one rank: all stop, with a checkpoint
      ASSERT_EQ(end.code, 0) << end.said;
      EXPECT_EQ(end.said, "SIGTERM");
    }
    EXPECT_TRUE(fs::exists(part.folder / "checkpoints/step-00000010"));
    part.change = {}, part.resume = true;
    expect_done(ranks, part);
    expect_same_weights(whole.folder, part.folder);
  }
}

TEST(TrainerTeam, NotANumberNamesItsRank) {
  const TemporaryRun folder;
  TeamRun run{.folder = folder.path("run")};
  run.change = [](TinyTask& task, const World& world) { task.poison_at = world.rank == 1 ? 10 : -1; };
  for (const RankEnd& end : train_on(2, run)) {
    EXPECT_EQ(end.code, 1);
    EXPECT_TRUE(says(end.said, "the loss is not finite at step 11 on rank 1")) << end.said;
    EXPECT_TRUE(says(end.said, "step-00000008")) << end.said;
  }
}

TEST(TrainerTeam, AGradientThatIsNotANumberNamesItsRank) {
  for (const bool deterministic : {true, false}) {
    const TemporaryRun folder;
    TeamRun run{.folder = folder.path("run")};
    run.options.deterministic_reduce = deterministic, run.options.accumulate = 2;
    run.change = [](TinyTask& task, const World& world) {
      if (world.rank >= 2) task.poison_gradient_at = 20;
    };
    for (const RankEnd& end : train_on(4, run)) {
      EXPECT_EQ(end.code, 1);
      EXPECT_TRUE(says(end.said, "train: the gradient is not finite at step 11 on rank 2, 3 (loss ")) << end.said;
      EXPECT_TRUE(says(end.said, "step-00000008")) << end.said;
    }
  }
}

// Options of a run whose optimiser the ranks keep together.
TeamRun sharded(fs::path folder) {
  TeamRun run{.folder = std::move(folder)};
  run.options.shard_optimizer = true;
  return run;
}

TEST(TrainerTeam, AShardedOptimizerHasTheBitsOfAWholeOne) {
  const TemporaryRun folder;
  TeamRun whole{.folder = folder.path("whole")};
  expect_done(1, whole);
  for (const int ranks : {2, 4, 8}) {
    const TeamRun many = sharded(folder.path("sharded" + std::to_string(ranks)));
    expect_done(ranks, many);
    expect_same_weights(whole.folder, many.folder);
    EXPECT_TRUE(read_file(whole.folder / kBestFile) == read_file(many.folder / kBestFile)) << ranks;
  }
  // Any number of ranks; with plain sums the bits are those of as many ranks.
  for (const bool shards : {false, true}) {
    TeamRun three{.folder = folder.path(shards ? "three-sharded" : "three")};
    three.options.deterministic_reduce = false, three.options.batch = 18, three.options.shard_optimizer = shards;
    expect_done(3, three);
  }
  expect_same_weights(folder.path("three"), folder.path("three-sharded"));
}

TEST(TrainerTeam, ASharedAverageIsInAllWeightsWhileItIsEvaluated) {
  TeamProcesses team(3, [](const World& world) {
    Team all(world, 60);
    torch::manual_seed(3);
    TinyModel model;
    Ema whole(*model, 0.5);
    Ema shared(*model, 0.5, {.rank = world.rank, .ranks = 3, .local_ranks = 3, .maybe_team = &all});
    {
      const torch::NoGradGuard no_gradient;
      for (const torch::Tensor& weight : model->parameters()) weight.add_(torch::randn_like(weight));
    }
    whole.update(20), shared.update(20);
    const auto now = [&] {
      std::vector<torch::Tensor> copies;
      for (const torch::Tensor& weight : model->parameters()) copies.push_back(weight.detach().reshape({-1}).clone());
      return torch::cat(copies);
    };
    const torch::Tensor live = now();
    whole.swap();
    const torch::Tensor average = now();
    whole.swap();
    shared.swap();
    const torch::Tensor swapped = now();
    shared.swap();
    if (average.equal(live)) return std::string("nothing was averaged");
    if (!swapped.equal(average)) return std::string("not the average");
    return std::string(now().equal(live) ? "good" : "not the weights");
  });
  for (const RankEnd& end : team.wait(kTeamLimit)) EXPECT_EQ(end.said, "good");
}

TEST(TrainerTeam, AShardedRunGoesOnWithMoreOrFewerProcesses) {
  const TemporaryRun folder;
  TeamRun whole{.folder = folder.path("whole")};
  expect_done(1, whole);
  struct Case {
    int before;
    bool sharded_before;
    int then;
    bool sharded_then;
  };
  for (const Case& at : {Case{4, true, 1, true}, {4, true, 2, false}, {4, true, 8, true}, {2, false, 4, true}}) {
    TeamRun part{.folder = folder.path(str("part", at.before, at.sharded_before, at.then, at.sharded_then))};
    part.options.shard_optimizer = at.sharded_before;
    part.change = [](TinyTask& task, const World& world) { task.raise_at = world.rank == 1 ? 9 : -1; };
    for (const RankEnd& end : train_on(at.before, part)) ASSERT_EQ(end.said, "SIGTERM");
    part.change = {}, part.resume = true, part.options.shard_optimizer = at.sharded_then;
    expect_done(at.then, part);
    expect_same_weights(whole.folder, part.folder);
  }
}

TEST(TrainerTeam, AKilledRankEndsTheOthersAndTheRunGoesOn) {
  const TemporaryRun folder;
  TeamRun whole{.folder = folder.path("whole")}, run{.folder = folder.path("run")};
  expect_done(2, whole);
  for (const int lost : {1, 0}) {
    run.change = [&](TinyTask& task, const World& world) {
      task.kill_at = world.rank == lost ? 6 + 6 * (1 - lost) : -1;
    };
    const std::vector<RankEnd> ends = train_on(4, run);
    for (int rank = 0; rank < 4; ++rank) {
      const RankEnd& end = ends[static_cast<std::size_t>(rank)];
      EXPECT_EQ(end.code, rank == lost ? -1 : 1) << end.said;
      if (rank == lost) continue;
      EXPECT_TRUE(says(end.said, str("rank ", lost, " is gone"))) << end.said;
      EXPECT_TRUE(says(end.said, lost == 1 ? "step-00000004" : "step-00000012")) << end.said;
    }
    run.resume = true;
  }
  run.change = {};
  expect_done(4, run);
  expect_same_weights(whole.folder, run.folder);
}

TEST(TrainerTeam, WhatDoesNotFitIsRefusedBeforeTheFirstStep) {
  const TemporaryRun folder;
  const auto refused = [&](int ranks, const TeamRun& run, const std::string& part) {
    for (const RankEnd& end : train_on(ranks, run)) {
      EXPECT_EQ(end.code, 2) << end.said;
      EXPECT_TRUE(says(end.said, part)) << end.said;
    }
    EXPECT_FALSE(fs::exists(run.folder / "train.json"));
  };
  TeamRun run{.folder = folder.path("run")};
  refused(3, run, "train: 3 processes, expected a number that divides reduce_leaves = 8");
  run.options.batch = 12;
  refused(2, run, "train: batch is 12, expected a multiple of reduce_leaves = 8");
  run.options.deterministic_reduce = false, run.options.batch = 16;
  refused(3, run, "train: batch is 16, expected a multiple of the 3 processes");
  run.differ = [](TrainOptions& options, const World& world) { options.max_steps = world.rank == 1 ? 30 : 20; };
  refused(2, run, "train: ranks differ in their options: max_steps is 30 on rank 1 and 20 on rank 0");
  run.differ = {}, run.config_of = [](const World& world) {
    return JsonValue().set("batch", 16).set("shard_optimizer", world.rank == 1);
  };
  refused(2, run, "train: ranks differ in their options: shard_optimizer is true on rank 1 and false on rank 0");
  run.config_of = {};
  run.change = [](TinyTask& task, const World& world) {
    if (world.rank == 1) task.seek(JsonValue().set("next", 5));
  };
  refused(2, run, "train: ranks differ in their data: next is 5 on rank 1 and 0 on rank 0");
  run.change = {}, run.resume = false;
  expect_done(2, run);
  const std::vector<RankEnd> again = train_on(2, run);
  for (const RankEnd& end : again) {
    EXPECT_EQ(end.code, 2);
    EXPECT_TRUE(says(end.said, "has a run already")) << end.said;
  }
}

}  // namespace
}  // namespace mhla::train
