// Training on latents with captions: what comes with a batch, the empty caption in place of some, a run that resumes to
// the same bits, and SANA that starts from another one.
#include <gtest/gtest.h>

#include "mhla/data/latent_set_fixture.h"
#include "mhla/diffusion/open_generator.h"
#include "mhla/testing/messages.h"
#include "mhla/train/diffusion/diffusion_fixture.h"
#include "mhla/train/diffusion/diffusion_init.h"
#include "mhla/train/diffusion/open_diffusion.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

// Of latents 4 x 2 x 3 and captions of 5 tokens with 2 channels.
const char* const kTinySana =
    R"({"dim": 16, "depth": 2, "head_dim": 8, "cross_heads": 2, "mlp_ratio": 2.0, "blocks": [2, 3]})";

class DiffusionCaptions : public testing::Test {
 protected:
  DiffusionCaptions() { make_latent_set(data, {.count = 60, .shard_items = 25, .labels = false, .captions = true}); }
  [[nodiscard]] DiffusionOptions options() const {
    DiffusionOptions o;
    o.model = "sana_600m", o.data = data, o.process = "flow", o.shift = 3.0;
    o.network = parse_json(kTinySana, "network");
    o.train.batch = 8, o.train.max_steps = 6, o.train.threads = 1, o.train.checkpoint_every = 2, o.train.ema = 0.9;
    o.train.seed = 5;
    o.eval_times = 2, o.sample_every = 3, o.sample_steps = 2, o.sample_columns = 2;
    return o;
  }
  struct Made : MadeDiffusion {
    explicit Made(const DiffusionOptions& o) : MadeDiffusion(o, open_source(o)) {}
  };
  TrainResult train(const std::string& name, const DiffusionOptions& o, bool resume = false, std::int64_t stop_at = -1,
                    const std::function<void(DiffusionTask&)>& change = {}) {
    return train_made(Made(o), run.path(name), resume, stop_at, rows, change);
  }
  // An autoencoder of 4 channels and a factor of 8: the sheets are decoded by it.
  [[nodiscard]] std::string vae() const {
    const fs::path place = run.path("vae");
    if (!fs::exists(place)) {
      KlConfig small;
      small.block_out_channels = {8, 8, 8, 8}, small.layers_per_block = 1, small.norm_num_groups = 4;
      small.scaling_factor = 0.5;  // that of the latents
      torch::manual_seed(1);
      save_autoencoder(*make_autoencoder(small), place);
    }
    return place.string();
  }
  TemporaryRun run;
  Rows rows;
  std::string data = run.path("latents").string();
};

TEST_F(DiffusionCaptions, TellTheirLatentsAndSomeAreTheEmptyOne) {
  DiffusionOptions o = options();
  o.label_dropout = 0.4, o.flip = 0.0;
  Made made(o);
  EXPECT_EQ(made.network.sana().caption_dim, 2);
  EXPECT_EQ(made.network.sana().caption_tokens, 5);
  EXPECT_EQ(made.network.sana().attention, "mhla");
  EXPECT_EQ(made.network.image, (std::array<std::int64_t, 2>{2, 3}));
  const Conditioning null = null_caption_of(*made.source.latents->train_set, torch::kCPU);
  int dropped = 0, seen = 0;
  for (int b = 0; b < 6; ++b) {
    const TrainBatch batch = made.task->next_batch();
    ASSERT_EQ(batch.inputs.size(), 6u);
    EXPECT_FALSE(batch.inputs[1].defined());
    for (std::int64_t i = 0; i < 8; ++i, ++seen) {
      const auto item = static_cast<std::int64_t>(batch.inputs[0][i].flatten()[16].item<float>()) - 1;
      const torch::Tensor caption = batch.inputs[4][i], mask = batch.inputs[5][i];
      const Conditioning own = captions_of(*made.source.latents->train_set, {item}, torch::kCPU);
      const bool is_own = torch::equal(caption, own.captions[0]) && torch::equal(mask, own.captions_mask[0]);
      const bool is_null = torch::equal(caption, null.captions[0]) && torch::equal(mask, null.captions_mask[0]);
      EXPECT_TRUE(is_own || is_null) << item;
      if (is_null && !is_own) ++dropped;
    }
  }
  EXPECT_EQ(seen, 48);
  EXPECT_GT(dropped, 8);  // 19 on the average, standard deviation 3.4
  EXPECT_LT(dropped, 31);
  o.label_dropout = 0.0;
  Made all(o);
  const TrainBatch batch = all.task->next_batch();
  for (std::int64_t i = 0; i < 8; ++i) {
    const auto item = static_cast<std::int64_t>(batch.inputs[0][i].flatten()[16].item<float>()) - 1;
    EXPECT_EQ(batch.inputs[4][i][0][0].item<float>(), static_cast<float>(item));
  }
}

TEST_F(DiffusionCaptions, TheLossIsThatOfTheVelocity) {
  Made made(options());
  const TrainBatch batch = made.task->next_batch();
  const torch::Tensor target = batch.inputs[3] - batch.inputs[0];
  const BatchResult result = made.task->forward(batch);  // the model answers 0
  EXPECT_NEAR(result.loss.item<double>() / target.square().mean().item<double>(), 1.0, 1e-5);
  // Captions reach the loss as soon as the model answers something.
  torch::nn::init::normal_(made.task->model().named_parameters()["final_layer.linear.weight"], 0.0, 0.1);
  TrainBatch other = batch;
  other.inputs[4] = batch.inputs[4] + 1.0;
  EXPECT_GT(std::abs(made.task->forward(other).loss.item<double>() - made.task->forward(batch).loss.item<double>()),
            1e-6);
}

TEST_F(DiffusionCaptions, ResumesToTheSameBitsWithSheetsOfPrompts) {
  DiffusionOptions o = options();
  o.vae = vae();
  const auto prompts = [&](DiffusionTask& task) {
    task.show({{}, torch::randn({2, 5, 2}, at::detail::createCPUGenerator(9)), torch::ones({2, 5}, torch::kLong)});
  };
  const TrainResult whole = train("whole", o, false, -1, prompts);
  EXPECT_EQ(train("cut", o, false, 3, prompts).stopped, "SIGINT");
  EXPECT_EQ(train("cut", o, true, -1, prompts).step, 6);
  for (const char* name :
       {"model.safetensors", "ema.safetensors", "samples/step-00000003.png", "samples/step-00000006.png"})
    EXPECT_TRUE(read_file(run.path("cut") / name) == read_file(run.path("whole") / name)) << name;
  const Image sheet = read_image(run.path("whole") / "samples/step-00000006.png");
  EXPECT_EQ(sheet.height, 2 * (16 + 2) + 2);  // two prompts, two columns
  EXPECT_EQ(sheet.width, 2 * (24 + 2) + 2);
  EXPECT_FALSE(fs::exists(run.path("whole") / "classes.json"));
  const JsonValue generation = read_json(run.path("whole") / "generation.json");
  EXPECT_EQ(generation.at("process").as_string(), "flow");
  EXPECT_EQ(generation.at("shift").as_double(), 3.0);
  EXPECT_EQ(generation.at("sample").at(1).as_int(), 3);

  OpenOptions open;
  open.run = run.path("whole").string(), open.threads = 1;
  const DiffusionRun opened = open_diffusion_run("test", open, "", rows);
  EXPECT_EQ(denoising_score(opened.model, *opened.held_out, opened.process, opened.options).mse,
            whole.metrics.at(0).second);
  const GeneratorPlan plan = describe_generator(run.path("whole"));  // as `mhla sample --run` does
  EXPECT_EQ(plan.own_size(), (std::array<std::int64_t, 2>{2, 3}));
  const Generator generator = load_generator(plan, run.path("whole") / "ema.safetensors");
  EXPECT_EQ(generator.network->parameters().size(), opened.model.module().parameters().size());

  // Without prompts the sheets show captions of held-out images, six of them.
  train("held_out", o);
  EXPECT_EQ(read_image(run.path("held_out") / "samples/step-00000006.png").height, 6 * (16 + 2) + 2);
}

class SanaInit : public DiffusionCaptions {
 protected:
  // A linear SANA with random weights everywhere, saved as `mhla convert` saves one.
  [[nodiscard]] InitSource saved(SanaNames names, const std::string& name) {
    SanaConfig c = sana_config("sana_600m", "linear");
    fields_from_json(c, parse_json(kTinySana, "network"), "network");
    c.channels = 4, c.caption_dim = 2, c.caption_tokens = 7;
    if (names == SanaNames::kDiffusers) c.truncate_t = false, c.eps = 1e-15;
    torch::manual_seed(11);
    linear = Sana(c);
    const torch::NoGradGuard no_gradient;
    for (const torch::Tensor& parameter : linear->parameters()) parameter.normal_(0.0, 0.2);
    save_sana(*linear, run.path(name), names);
    const char* file = names == SanaNames::kDiffusers ? "diffusion_pytorch_model.safetensors" : "model.safetensors";
    return {name, run.path(name) / file, "", run.path(name) / "config.json", run.path(name)};
  }
  // The velocity for a latent at a time.
  static torch::Tensor answer(SanaImpl& model) {
    const torch::NoGradGuard no_gradient;
    const at::Generator random = at::detail::createCPUGenerator(3);
    const torch::Tensor x = torch::randn({2, 4, 2, 3}, random), captions = torch::randn({2, 5, 2}, random);
    return model.forward(x, torch::tensor({300.0, 700.0}), captions, torch::ones({2, 5}, torch::kLong));
  }
  Sana linear{nullptr};
};

TEST_F(SanaInit, LinearToMhlaStartsAsTheSameFunction) {
  for (const SanaNames names : {SanaNames::kOriginal, SanaNames::kDiffusers}) {
    const std::string folder = names == SanaNames::kOriginal ? "original" : "diffusers";
    const InitSource source = saved(names, folder);
    DiffusionOptions o = options();
    o.model = source.maybe_config.string(), o.network = JsonValue::object(), o.attention = "mhla";
    o.train.init = source.maybe_folder.string();
    Made made(o);
    EXPECT_EQ(made.network.sana().mix_init, "uniform");
    const std::vector<std::string> changes = start_from(made.task->network(), source, made.task->generation());
    ASSERT_EQ(changes.size(), 2u);
    EXPECT_EQ(changes[0], "mhla attention from the weights of linear, mixing uniform at first");
    const bool original = names == SanaNames::kOriginal;  // diffusers' config does not say how long captions are
    EXPECT_EQ(changes[1], str("captions of 5 tokens, not the ", original ? 7 : 300, " of the weights"));
    // Every block weighs 1 / M, in the numerator and in the denominator, to which eps is added.
    const SanaConfig& own = made.network.sana();
    SanaConfig same_eps = linear->config();
    same_eps.eps = own.eps * static_cast<double>(own.blocks[0] * own.blocks[1]), same_eps.features = own.features;
    const torch::Tensor before = answer(*linear), after = answer(made.task->network().sana()),
                        exact = answer(*with_attention(*linear, same_eps));
    const auto size = before.abs().max().item<double>();
    EXPECT_GT(size, 0.1);
    EXPECT_LT((exact - after).abs().max().item<double>() / size, 2e-5) << folder;  // rounding only
    EXPECT_LT((before - after).abs().max().item<double>() / size, 1e-2)
        << folder;  // eps: q.k of six tokens can be 1e-3
    // Another mixing matrix is another function.
    const torch::NoGradGuard no_gradient;
    torch::Tensor mix = made.task->model().named_parameters()["blocks.0.attn.mix"];
    mix.copy_(torch::eye(mix.size(0)));
    EXPECT_GT((before - answer(made.task->network().sana())).abs().max().item<double>() / size, 5e-2);
  }
}

TEST_F(SanaInit, ARunStartsFromARun) {
  train("first", options());
  DiffusionOptions o = options();
  o.network.set("blocks", parse_json("[1, 3]", "blocks"));
  o.shift = 1.0;
  Made made(o);
  const InitSource source{"first", run.path("first") / "ema.safetensors", "", run.path("first") / "config.json",
                          run.path("first")};
  const std::vector<std::string> changes = start_from(made.task->network(), source, made.task->generation());
  EXPECT_EQ(changes,
            (std::vector<std::string>{"mixing matrices resized to other blocks", "shift 1, not the 3 of the weights"}));
  o.network.set("depth", 1);
  EXPECT_TRUE(has(message_of([&] { start_from(Made(o).task->network(), source, made.task->generation()); }),
                  "train: init is first, whose depth is 2, but the network has 1"));
}

TEST_F(DiffusionCaptions, SaysWhatDoesNotFit) {
  const auto refused = [&](const std::function<void(DiffusionOptions&)>& change) {
    DiffusionOptions o = options();
    change(o);
    return message_of([&] {
      check(o);
      Made made(o);
    });
  };
  const std::string labelled = run.path("labelled").string();
  make_latent_set(labelled, {.count = 60, .shard_items = 25});
  EXPECT_TRUE(has(refused([&](DiffusionOptions& o) { o.data = labelled; }), "has no captions, expected latents with"));
  EXPECT_EQ(refused([](DiffusionOptions& o) { o.process = "noise", o.shift = 1; }),
            "train: process is noise, expected flow for sana_600m");
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.variant = "cpe"; }), "expected neither for sana_600m"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.network.set("caption_dim", 3); }),
                  "caption_dim is 3, expected the 2 of the latents of"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.network.set("patch", 2); }),
                  "patch is 2, expected one that divides the 2x3"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.network.set("heads", 2); }), "heads"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.label_dropout = 1.0; }), "label_dropout is 1, expected 0 or"));
  EXPECT_TRUE(has(refused([](DiffusionOptions& o) { o.attention = "gla"; }), "expected linear, mhla or softmax"));
  EXPECT_EQ(refused([](DiffusionOptions&) {}), "nothing was thrown");
}

}  // namespace
}  // namespace mhla::train
