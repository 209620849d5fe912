// Training on cached latents: what comes out of their files, mirrored ones among them, and a run from start to end.
#include <gtest/gtest.h>

#include "mhla/data/latent_set_fixture.h"
#include "mhla/testing/messages.h"
#include "mhla/train/diffusion/diffusion_fixture.h"
#include "mhla/train/diffusion/open_diffusion.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

class DiffusionLatents : public testing::Test {
 protected:
  DiffusionLatents() { make_latent_set(data, {.count = 60, .shard_items = 25}); }
  [[nodiscard]] DiffusionOptions options() const {
    DiffusionOptions o;
    o.model = "dit_d32", o.data = data;
    o.network = parse_json(R"({"patch": 1, "dim": 16, "depth": 1, "heads": 2, "blocks": [1, 1]})", "network");
    o.train.batch = 8, o.train.max_steps = 6, o.train.threads = 1, o.train.checkpoint_every = 2, o.train.ema = 0.9;
    o.eval_times = 2, o.sample_every = 3, o.sample_steps = 2, o.sample_columns = 1;
    return o;
  }
  TrainResult train(const std::string& name, const DiffusionOptions& o, bool resume = false,
                    Rows* maybe_rows = nullptr) {
    Rows rows;
    return train_made({o, open_source(o)}, run.path(name), resume, -1, maybe_rows == nullptr ? rows : *maybe_rows);
  }
  TemporaryRun run;
  std::string data = run.path("latents").string();
};

TEST_F(DiffusionLatents, ComeFromTheirFilesPlainAndMirrored) {
  DiffusionOptions o = options();
  const DiffusionSource source = open_source(o);
  EXPECT_EQ(source.channels(), 4);
  EXPECT_EQ(source.class_names(), (std::vector<std::string>{"ant", "bee", "cow"}));
  EXPECT_EQ(source.test_size(), 6);  // 2 of 20 of every class
  const NetworkConfig network = network_of(o, source);
  EXPECT_EQ(network.image, (std::array<std::int64_t, 2>{2, 3}));
  EXPECT_EQ(network.channels(), 4);
  o = resolved(o, network, source);
  EXPECT_EQ(o.flip, 0.5);
  const auto samples = training_samples(source, o, network);
  EXPECT_EQ(samples->batches_per_epoch(), 6);
  std::vector<std::string> none;
  int mirrored = 0;
  std::vector<int> seen(60, 0);
  JsonValue at_four;
  SampleBatch fourth;
  for (int b = 0; b < 6; ++b) {
    if (b == 4) at_four = samples->cursor();
    const SampleBatch batch = samples->next(none);
    if (b == 4) fourth = batch;
    for (std::int64_t i = 0; i < 8; ++i) {
      const float first = batch.x[i].flatten()[16].item<float>();  // n + 1, or its negative
      const auto item = static_cast<std::int64_t>(std::abs(first)) - 1;
      EXPECT_EQ(batch.labels[static_cast<std::size_t>(i)], item % 3);
      ++seen[static_cast<std::size_t>(item)];
      if (first < 0) ++mirrored;
    }
  }
  EXPECT_EQ(*std::max_element(seen.begin(), seen.end()), 1);
  EXPECT_GT(mirrored, 12);
  EXPECT_LT(mirrored, 36);
  const auto again = training_samples(source, o, network);
  again->seek(at_four);
  EXPECT_TRUE(torch::equal(again->next(none).x, fourth.x));
  held_out_samples(source, o, network)->each(none, [&](const SampleBatch& batch) {
    for (std::int64_t i = 0; i < batch.x.size(0); ++i)
      EXPECT_EQ(seen[static_cast<std::size_t>(batch.x[i].flatten()[16].item<float>()) - 1], 0);  // plain, and not seen
  });
}

TEST_F(DiffusionLatents, ARunShowsDecodedSamplesWhereItsAutoencoderIs) {
  Rows rows;
  train("none", options(), false, &rows);
  EXPECT_FALSE(fs::exists(run.path("none") / "samples"));
  EXPECT_EQ(std::count_if(rows.rows.begin(), rows.rows.end(),
                          [](const JsonValue& row) { return has(write_json(row), "--vae names its folder"); }),
            1);
  const JsonValue generation = read_json(run.path("none") / "generation.json");
  EXPECT_EQ(generation.at("space").as_string(), "latents");
  EXPECT_EQ(generation.at("latent_scale").as_double(), 0.5);

  KlConfig small;
  small.block_out_channels = {8, 8, 8, 8}, small.layers_per_block = 1, small.norm_num_groups = 4;
  small.scaling_factor = 0.5;  // that of the latents
  torch::manual_seed(1);
  save_autoencoder(*make_autoencoder(small), run.path("vae"));
  DiffusionOptions o = options();
  o.vae = run.path("vae").string();
  const TrainResult result = train("decoded", o);
  EXPECT_EQ(result.metrics.at(0).first, "mse");
  const Image sheet = read_image(run.path("decoded") / "samples/step-00000006.png");
  EXPECT_EQ(sheet.height, 3 * (16 + 2) + 2);
  EXPECT_EQ(sheet.width, 24 + 2 + 2);
  EXPECT_TRUE(read_file(run.path("decoded") / "model.safetensors") ==
              read_file(run.path("none") / "model.safetensors"));
  OpenOptions open;
  open.run = run.path("decoded").string(), open.threads = 1;
  DiffusionRun opened = open_diffusion_run("test", open, "", rows);
  const DenoisingScore score = denoising_score(opened.model, *opened.held_out, opened.process, opened.options);
  EXPECT_EQ(score.mse, result.metrics[0].second);
}

TEST_F(DiffusionLatents, SaysWhatDoesNotFit) {
  const auto refused = [&](const std::function<void(DiffusionOptions&)>& change) {
    DiffusionOptions o = options();
    change(o);
    return message_of([&] { train("refused", o); });
  };
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.network.set("channels", 3); }),
                  "channels is 3, expected the 4 of the latents"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.network.set("image", parse_json("[4, 4]", "n")); }),
                  "image is 4x4, expected the 2x3 of the latents"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.fit = "pad"; }), "fit is pad, expected none for latents"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.vae = "/nowhere"; }), "vae is /nowhere, expected a folder"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.hold_out = 0; }), "hold_out is 0"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.train.batch = 55; }), "at most the 54 latents"));
  const std::string plain = run.path("plain").string(), texts = run.path("texts").string();
  make_latent_set(plain, {.count = 60, .shard_items = 25, .flipped = false});
  make_latent_set(texts, {.labels = false, .captions = true});
  EXPECT_TRUE(
      has(refused([&](DiffusionOptions& o) { o.data = plain, o.flip = 0.5; }), "no latents of mirrored images"));
  EXPECT_TRUE(has(refused([&](DiffusionOptions& o) { o.data = texts; }), "latents without classes"));
  EXPECT_FALSE(fs::exists(run.path("refused")));
}

TEST_F(DiffusionLatents, TwoFoldersAreTrainingAndTest) {
  const std::string both = run.path("both").string();
  make_latent_set(both + "/train", {.count = 30, .shard_items = 25});
  make_latent_set(both + "/val", {.count = 9, .shard_items = 25});
  DiffusionOptions o = options();
  o.data = both;
  const DiffusionSource source = open_source(o);
  EXPECT_EQ(source.test_size(), 9);
  EXPECT_FALSE(source.held_out());
  EXPECT_EQ(source.latents->train.size(), 30u);
}

}  // namespace
}  // namespace mhla::train
