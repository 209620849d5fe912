// A diffusion training whose processes share every image, against one process.
#include <gtest/gtest.h>

#include "mhla/testing/messages.h"
#include "mhla/train/context_fixture.h"
#include "mhla/train/diffusion/diffusion_fixture.h"
#include "mhla/train/image_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;
using distributed::World;

DiffusionOptions shared_options(int context) {
  DiffusionOptions o;
  o.model = "dit_d32";
  o.network = parse_json(
      R"({"image": [12, 8], "patch": 2, "dim": 16, "depth": 2, "heads": 2, "blocks": [3, 2], "lepe": 3, "cpe": 3})",
      "n");
  o.train.batch = 8, o.train.max_steps = 5, o.train.threads = 1, o.train.checkpoint_every = 0, o.train.ema = 0.9;
  o.train.seed = 3, o.train.log_every = 1, o.train.timeout = 30, o.train.context_parallel = context;
  o.eval_times = 3, o.sample_every = 5, o.sample_steps = 2, o.sample_columns = 1;
  return o;
}

std::string train_as(const World& world, DiffusionOptions options, const fs::path& folder) {
  const Placed placed(world, options.train);
  const MadeDiffusion made(options, {{quarters("train", 48, 1), quarters("test", 12, 2), false}, nullptr});
  Rows rows;
  return placed.run([&] { return train_made(made, folder, /*resume=*/false, /*stop_at=*/-1, rows).stopped; });
}

TEST(SharedDiffusion, TrainsWhatOneProcessTrains) {
  const TemporaryRun temporary;
  const auto train = [&](int ranks, int context) {
    const fs::path folder = temporary.path(str(ranks, "-", context));
    expect_team_ends(ranks, [&](const World& world) { return train_as(world, shared_options(context), folder); });
    return folder;
  };
  const fs::path one = train(1, 1);
  for (const auto& [ranks, context] : {std::pair{2, 2}, {3, 3}, {4, 2}}) {
    SCOPED_TRACE(str(ranks, " processes, ", context, " for an image"));
    const fs::path folder = train(ranks, context);
    EXPECT_LE(difference(losses_of(folder), losses_of(one)), 1e-6);
    EXPECT_LE(difference(weights_of(folder), weights_of(one)), 1e-6);
  }
}

TEST(SharedDiffusion, RefusesWhatCannotBeCut) {
  const auto message = [&](const std::string& network) {
    DitConfig c = dit_config("dit_d32");
    fields_from_json(c, parse_json(network, "n"), "network");
    TrainOptions o;
    o.place.ranks = o.place.context = 4;
    return message_of([&] { (void)sharing_plan(o, shared_kind(NetworkConfig(c))); });
  };
  EXPECT_EQ(message(R"({"attention": "softmax"})"), "train: attention is softmax with context_parallel, expected mhla");
  EXPECT_EQ(message(R"({"official": true})"), "train: official is on with context_parallel, expected off");
  EXPECT_EQ(
      message(R"({"image": [16, 16], "patch": 2, "blocks": [2, 4]})"),
      "train: context_parallel is 4, expected at most 2, the blocks along the first axis of 2d grid 8x8 blocks 2x4 "
      "with 64 tokens");
  EXPECT_EQ(message(R"({"image": [8, 8], "patch": 2, "blocks": [4, 4], "lepe": 5})"),
            "train: context_parallel is 4, expected fewer: lepe reads 8 tokens across a cut, and process 0 has 4");
}

}  // namespace
}  // namespace mhla::train
