// `--context-parallel`: trainings whose processes share every sequence, against one process and against each other, and
// what is refused.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/testing/messages.h"
#include "mhla/train/context_fixture.h"
#include "mhla/train/lm/lm_sharing.h"
#include "mhla/train/lm/lm_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;
using distributed::World;

// 76 tokens in chunks of 8: ten chunks, the last of four tokens. Rotary positions, three rows of every short
// convolution and one target go across each cut.
LmOptions context_options(const fs::path& folder) {
  fs::create_directories(folder);
  std::string text;
  for (int i = 0; i < 400; ++i) text += str("a line with number ", i * i % 97, " and some more words\n");
  const std::string path = (folder / "text.txt").string();
  write_file(path, text);
  LmOptions o;
  o.model = "mhla_10m", o.data = path, o.tokenizer = "bytes", o.valid = 0.1, o.packing = "concatenate";
  o.tokens = (folder / "tokens").string();
  o.network = parse_json(
      R"({"dim": 32, "layers": 2, "heads": 2, "mlp": 64, "context": 76, "chunk": 8, "short_conv": 4})", "network");
  o.train.batch = 4, o.train.max_steps = 4, o.train.lr = 1e-2, o.train.min_lr = 1e-3, o.train.warmup_steps = 2;
  o.train.threads = 1, o.train.seed = 3, o.train.log_every = 1, o.train.checkpoint_every = 0, o.train.timeout = 30;
  token_folder(o, "", [](const std::string&) {});  // before processes start that would all make them
  return o;
}

struct ContextRun {
  LmOptions options;
  fs::path folder;
  bool resume = false;
  std::int64_t stop_after = -1;  // a signal at rank 0, after this step
};

std::string train_as(const World& world, const ContextRun& run) {
  LmOptions options = run.options;
  const Placed placed(world, options.train);
  StopAt rows;
  if (world.leads()) rows.step = run.stop_after;
  return placed.run([&] { return train_lm(options, run.folder, rows, run.resume).stopped; });
}

void expect_ends(int ranks, const ContextRun& run, const std::string& said = "") {
  expect_team_ends(
      ranks, [&](const World& world) { return train_as(world, run); }, said);
}

// Products of fewer rows round differently, and so do sums of the gradients of weights over other parts: weights agree
// up to rounding, which AdamW enlarges where a gradient is close to 0.
TEST(ContextParallel, TrainsWhatOneProcessTrains) {
  const TemporaryRun temporary;
  const LmOptions options = context_options(temporary.path("data"));
  const fs::path one = temporary.path("one");
  expect_ends(1, {options, one});
  const std::vector<double> losses = losses_of(one), weights = weights_of(one);
  ASSERT_EQ(losses.size(), 9u);
  struct {
    int ranks, context;
    const char* method;
  } const cases[] = {{2, 2, "heads"}, {2, 2, "summaries"}, {3, 3, "auto"}, {4, 2, "auto"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(str(c.ranks, " processes, ", c.context, " for a sequence by ", c.method));
    LmOptions shared = options;
    shared.train.context_parallel = c.context, shared.train.context_method = c.method;
    const fs::path folder = temporary.path(str(c.ranks, c.context, c.method));
    expect_ends(c.ranks, {shared, folder});
    EXPECT_LE(difference(losses_of(folder), losses), 1e-6);
    EXPECT_LE(difference(weights_of(folder), weights), 1e-4);
  }
}

TEST(ContextParallel, TheNumberOfGroupsAndShardsMakesNoDifference) {
  const TemporaryRun temporary;
  LmOptions options = context_options(temporary.path("data"));
  options.train.context_parallel = 2, options.train.ema = 0.9;
  options.train.deterministic_reduce = true, options.train.reduce_leaves = 2, options.train.accumulate = 2;
  const fs::path two = temporary.path("two"), four = temporary.path("four"), again = temporary.path("again");
  expect_ends(2, {options, two});
  options.train.shard_optimizer = true;
  expect_ends(4, {options, four});
  EXPECT_TRUE(same_bytes(two, four, "model.safetensors"));
  EXPECT_TRUE(same_bytes(two, four, "ema.safetensors"));
  EXPECT_EQ(losses_of(two), losses_of(four));
  // Stopped at 4 and resumed at 2.
  expect_ends(4, {options, again, /*resume=*/false, /*stop_after=*/2}, "SIGTERM");
  options.train.shard_optimizer = false;
  expect_ends(2, {options, again, /*resume=*/true});
  EXPECT_TRUE(same_bytes(two, again, "model.safetensors"));
}

TEST(ContextParallel, GoesOnWithAnotherNumberForASequence) {
  const TemporaryRun temporary;
  LmOptions options = context_options(temporary.path("data"));
  const fs::path one = temporary.path("one"), many = temporary.path("many");
  expect_ends(1, {options, one});
  options.train.context_parallel = 2;
  expect_ends(2, {options, many, /*resume=*/false, /*stop_after=*/1}, "SIGTERM");
  options.train.context_parallel = 3;
  expect_ends(3, {options, many, /*resume=*/true, /*stop_after=*/3}, "SIGTERM");
  options.train.context_parallel = 1;
  expect_ends(1, {options, many, /*resume=*/true});
  EXPECT_LE(difference(losses_of(many), losses_of(one)), 1e-6);
  EXPECT_LE(difference(weights_of(many), weights_of(one)), 1e-4);
}

// A training whose weights become NaN on one rank, before the third batch.
class PoisonedTask : public LmTask {
 public:
  using LmTask::LmTask;
  TrainBatch next_batch() override {
    if (++batches_ == 3 && poisoned) {
      const torch::NoGradGuard no_gradient;
      model().parameters().front().fill_(std::numeric_limits<double>::quiet_NaN());
    }
    return LmTask::next_batch();
  }
  bool poisoned = false;

 private:
  int batches_ = 0;
};

// What a process computes from its NaN it sends to the others of its group. Of these, the ones with later tokens read
// it.
TEST(ContextParallel, NotANumberNamesTheRanksThatReadIt) {
  const TemporaryRun temporary;
  LmOptions options = context_options(temporary.path("data"));
  options.train.context_parallel = 2, options.train.checkpoint_every = 1;
  const std::pair<int, const char*> cases[] = {{3, " on rank 3"}, {0, " on rank 0, 1"}};
  for (const auto& [poisoned, where] : cases) {
    const std::string folder = temporary.path(str("run", poisoned)).string();
    distributed::TeamProcesses team(4, [&, poisoned = poisoned](const World& world) {
      LmOptions mine = options;
      const Placed placed(world, mine.train);
      return placed.run([&] {
        LmDataPtr data = open_data(mine, folder, [](const std::string&) {});
        const LmConfig network = network_of(mine, *data);
        mine = resolved(mine, network);
        prepare(mine.train);
        PoisonedTask task(mine, std::move(data), network);
        task.poisoned = world.rank == poisoned;
        Rows rows;
        return Trainer(task, mine.train, folder, fields_to_json(mine), rows).run(false).stopped;
      });
    });
    for (const distributed::RankEnd& end : team.wait(100)) {
      EXPECT_EQ(end.code, 1);
      for (const std::string& part :
           {str("train: the loss is not finite at step 3", where), folder, std::string("/checkpoints/step-00000002")})
        EXPECT_NE(end.said.find(part), std::string::npos) << part << " in " << end.said;
    }
  }
}

TEST(ContextParallel, RefusesWhatCannotBeCut) {
  const TemporaryRun temporary;
  const LmOptions usual = context_options(temporary.path("data"));
  const auto message = [&](const std::function<void(LmOptions&)>& change) {
    LmOptions o = usual;
    o.train.context_parallel = 2, o.train.place.ranks = 2;
    change(o);
    return message_of([&] {
      place_sequences(o.train);
      check(o);
    });
  };
  EXPECT_EQ(message([](LmOptions&) {}), "nothing was thrown");
  EXPECT_EQ(message([](LmOptions& o) { o.packing = "documents"; }),
            "train: packing is documents with context_parallel 2, expected concatenate: a packed document would cross "
            "the cut between two processes");
  EXPECT_EQ(message([](LmOptions& o) { o.attention = "softmax"; }),
            "train: attention is softmax with context_parallel 2, expected mhla");
  EXPECT_EQ(message([](LmOptions& o) { o.train.place.ranks = 3; }),
            "train: context_parallel is 2 on 3 processes, expected a number that divides the processes");
  EXPECT_EQ(
      message([](LmOptions& o) { o.context = 8; }),
      "train: context_parallel is 2, expected at most 1, the blocks along the first axis of 1d C=8 with 8 tokens");
  EXPECT_EQ(
      message([](LmOptions& o) { o.context = 10; }),
      "train: context_parallel is 2, expected fewer: short_conv reads 3 tokens across a cut, and process 1 has 2");
  EXPECT_EQ(message([](LmOptions& o) { o.train.context_parallel = 0; }),
            "train: context_parallel is 0, expected at least 1");
  EXPECT_EQ(message([](LmOptions& o) { o.train.context_method = "ring"; }),
            "train: context_method is ring, expected auto, summaries or heads");
  EXPECT_EQ(message([](LmOptions& o) {
              o.train.context_parallel = o.train.place.ranks = 3, o.train.context_method = "heads";
            }),
            "train: context_method is heads, but 3 processes do not divide 2 heads, expected auto or summaries");
  EXPECT_EQ(message([](LmOptions& o) { o.train.place.ranks = 4, o.train.batch = 3; }),
            "train: batch is 3, expected a multiple of the 2 groups of 2 processes");
  EXPECT_EQ(message([](LmOptions& o) {
              o.train.context_parallel = o.train.place.ranks = 3, o.train.deterministic_reduce = true;
              o.train.batch = 8;
            }),
            "train: context_parallel is 3 with deterministic_reduce, expected a power of two");
}

}  // namespace
}  // namespace mhla::train
