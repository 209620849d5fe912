// Wan's transformer: recorded numbers, attentions of the same weights, names, files, sizes, and what does not fit.
#include "mhla/models/wan/wan.h"

#include <filesystem>

#include "mhla/models/recorded_fixture.h"
#include "mhla/models/wan/wan_recorded.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

WanConfig small_wan(const std::string& attention = "softmax") {
  WanConfig c = wan_config("wan_1_3b", attention);
  c.channels = c.out_channels = 4, c.dim = 24, c.depth = 3, c.heads = 2, c.mlp = 20;
  c.text_dim = 10, c.text_tokens = 5, c.time_channels = 8, c.blocks = {2, 2, 3};
  return c;
}

Wan make_wan(const WanConfig& c) {
  torch::manual_seed(1);
  Wan model(c);
  const torch::NoGradGuard no_gradient;  // the last layer starts with 0
  for (const auto& item : model->named_parameters())
    if (item.key().find(".mix") == std::string::npos) item.value().normal_(0.0, 0.2);
  return model;
}

struct Given {
  torch::Tensor x, t, text;
};

Given given(const WanConfig& c, std::int64_t frames = 3, std::int64_t rows = 4, std::int64_t columns = 6) {
  torch::manual_seed(7);
  return {torch::randn({2, c.channels, frames, rows, columns}), torch::tensor({10.0F, 700.0F}),
          torch::randn({2, 3, c.text_dim})};
}

torch::Tensor run_wan(const Wan& model, std::int64_t frames = 3, std::int64_t rows = 4, std::int64_t columns = 6) {
  const Given in = given(model->config(), frames, rows, columns);
  const torch::NoGradGuard no_gradient;
  return model.ptr()->forward(in.x, in.t, in.text);
}

// ---- Recorded

TEST(WanGolden, OutputsAndGradients) {
  expect_recorded_cases("video/wan_transformer", 3, wan_recorded());
  expect_recorded_cases("video/wan_mhla", 2, wan_recorded());
}

TEST(WanGolden, PositionsAndTimes) { expect_recorded_cases("video/rope3d", 3, wan_recorded()); }

// ---- Sizes

TEST(Wan, PublishedModelsHaveTheirParameters) {
  EXPECT_EQ(size_of(wan_config("wan_1_3b"), {21, 60, 100}).parameters, 1418996800.0);
  EXPECT_EQ(size_of(wan_config("wan_14b"), {21, 60, 100}).parameters, 14288491584.0);
  for (const char* attention : {"softmax", "mhla", "linear"}) {
    WanConfig c = small_wan(attention);
    c.gate = "silu", c.lepe = 3;
    if (c.attention == "mhla") c.layers = {0, 2};
    for (const bool head_norm : {true, false}) {
      c.head_norm = head_norm;
      const Wan model(c);
      double count = 0;
      for (const torch::Tensor& parameter : model->parameters()) count += static_cast<double>(parameter.numel());
      EXPECT_EQ(size_of(c, {3, 4, 6}).parameters, count) << attention << head_norm;
    }
  }
}

TEST(Wan, AnyGridThatThePatchDivides) {
  for (const char* attention : {"softmax", "mhla", "linear"}) {
    const Wan model = make_wan(small_wan(attention));
    for (const VideoGrid& latent : {VideoGrid{1, 2, 2}, VideoGrid{5, 6, 10}, VideoGrid{3, 4, 6}}) {
      const torch::Tensor out = run_wan(model, latent[0], latent[1], latent[2]);
      EXPECT_EQ(out.sizes(), (std::vector<std::int64_t>{2, 4, latent[0], latent[1], latent[2]}));
      EXPECT_TRUE(out.isfinite().all().item<bool>()) << attention;
    }
  }
}

// ---- Attentions

// The norm of a head makes its scale vanish; without it the values go through as they are.
TEST(Wan, HeadsWithoutANormKeepTheScaleOfTheirValues) {
  for (const bool head_norm : {true, false}) {
    WanConfig c = small_wan("mhla");
    c.normalizer = "paper", c.head_norm = head_norm, c.layers = {0};
    const Wan model = make_wan(c);
    const torch::Tensor before = run_wan(model);
    {
      const torch::NoGradGuard no_gradient;
      Weights state = weights_of(*model);
      for (const char* name : {"blocks.0.self_attn.v.weight", "blocks.0.self_attn.v.bias"}) state.at(name).mul_(8.0);
    }
    const double moved = relative_distance(run_wan(model), before);
    EXPECT_EQ(moved < 1e-4, head_norm) << moved;
  }
}

TEST(Wan, AHybridHasMhlaInTheLayersListed) {
  WanConfig c = small_wan("mhla");
  c.layers = {1};
  const Wan model = make_wan(c);
  for (std::int64_t layer = 0; layer < 3; ++layer)
    EXPECT_EQ(model->blocks()[static_cast<std::size_t>(layer)]->attention()->mix.defined(), layer == 1);
  model.ptr()->constrain();
  c.attention = "softmax";
  EXPECT_TRUE(has(message_of([&] { check(c); }), "layers are listed for softmax attention"));
  c.attention = "mhla", c.layers = {3};
  EXPECT_TRUE(has(message_of([&] { check(c); }), "layers has 3, expected 0 to 2"));
}

// With one number everywhere MHLA is linear attention.
TEST(Wan, UniformMixingIsLinearAttention) {
  WanConfig linear = small_wan("linear"), uniform = small_wan("mhla");
  linear.normalizer = uniform.normalizer = "paper", uniform.mix_init = "uniform";
  const Wan a = make_wan(linear), b(uniform);
  Weights state = weights_of(*a);
  for (const auto& [name, value] : weights_of(*b))
    if (name.find(".mix") != std::string::npos) state[name] = value;
  copy_weights(weights_of(*b), state, "test");
  EXPECT_LE(relative_distance(run_wan(b), run_wan(a)), 2e-5);
}

// ---- From one attention to another

TEST(Wan, AnotherAttentionKeepsAllThatBothHave) {
  const Wan softmax = make_wan(small_wan());
  WanConfig c = small_wan("mhla");
  c.layers = {1};
  const Wan plain = with_attention(*softmax, c);
  const Weights before = weights_of(*softmax), after = weights_of(*plain);
  EXPECT_EQ(after.size(), before.size() + 2);  // mix and g_norm of one layer
  for (const auto& [name, value] : before) EXPECT_TRUE(torch::equal(after.at(name), value)) << name;
  EXPECT_TRUE(torch::equal(after.at("blocks.1.self_attn.g_norm.weight"), torch::ones({12})));
  EXPECT_TRUE(torch::equal(after.at("blocks.1.self_attn.mix"), weights_of(*Wan(c)).at("blocks.1.self_attn.mix")));
  EXPECT_TRUE(torch::equal(run_wan(with_attention(*plain, small_wan())), run_wan(softmax)));  // there and back
}

TEST(Wan, AGateAndLepeStartWithoutAnEffect) {
  const Wan softmax = make_wan(small_wan());
  WanConfig c = small_wan("mhla");
  const torch::Tensor plain = run_wan(with_attention(*softmax, c));
  EXPECT_GT(relative_distance(run_wan(softmax), plain), 1e-3);
  c.gate = "silu", c.lepe = 3;
  EXPECT_LE(relative_distance(run_wan(with_attention(*softmax, c)), plain), 1e-5);
}

TEST(Wan, MixingMatricesAreResampledToOtherBlocks) {
  WanConfig c = small_wan("mhla");
  c.mix_init = "uniform", c.normalizer = "paper";
  const Wan model = with_attention(*make_wan(small_wan()), c);
  WanConfig finer = c;
  finer.blocks = {3, 2, 3};
  EXPECT_LE(relative_distance(run_wan(with_attention(*model, finer)), run_wan(model)), 2e-5);  // uniform stays uniform
  WanConfig other = c;
  other.depth = 2;
  EXPECT_TRUE(has(message_of([&] { with_attention(*model, other); }), "in more than its attention"));
}

TEST(Wan, LayersByName) {
  EXPECT_TRUE(wan_layers("all", 6, "--layers").empty());
  EXPECT_EQ(wan_layers("every-3rd-kept", 7, "--layers"), (std::vector<std::int64_t>{1, 2, 4, 5}));
  EXPECT_EQ(wan_layers("every-2nd-kept", 4, "--layers"), (std::vector<std::int64_t>{1, 3}));
  EXPECT_EQ(wan_layers("5,0", 6, "--layers"), (std::vector<std::int64_t>{5, 0}));
  const auto said = [](const char* text) { return message_of([&] { wan_layers(text, 6, "--layers"); }); };
  EXPECT_TRUE(has(said("6"), "--layers has 6, expected 0 to 5"));
  for (const char* text : {"", "some", "1,", "every-1st-kept", "every-0th-kept", "-1"})
    EXPECT_TRUE(has(said(text), "expected all, every-3rd-kept, or numbers joined by commas")) << text;
}

TEST(Wan, VideosOfDifferentGridsAreThoseOfEachAlone) {
  for (const char* attention : {"softmax", "mhla"}) {
    const Wan model = make_wan(small_wan(attention));
    const WanConfig& c = model->config();
    const std::vector<torch::Tensor> videos{torch::randn({c.channels, 1, 4, 4}), torch::randn({c.channels, 3, 2, 6})};
    const torch::Tensor t = torch::tensor({3.0F, 900.0F}), text = torch::randn({2, 4, c.text_dim});
    const torch::NoGradGuard no_gradient;
    const std::vector<torch::Tensor> both = model.ptr()->forward(videos, t, text);
    for (std::int64_t b = 0; b < 2; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const torch::Tensor alone =
          model.ptr()->forward(videos[i].unsqueeze(0), t.narrow(0, b, 1), text.narrow(0, b, 1)).squeeze(0);
      EXPECT_LE(relative_distance(both[i], alone), 1e-5) << attention;
    }
  }
}

// ---- Words

TEST(Wan, WordsAreRowsOfItsOwnTable) {
  WanConfig c = small_wan();
  c.vocab = 9;
  const Wan model = make_wan(c);
  const Given in = given(c);
  const torch::Tensor numbers = torch::tensor({{2, 5, 8}, {1, 0, 0}}, torch::kLong);
  WanConfig plain = c;
  plain.vocab = 0;
  const Wan other = make_wan(plain);
  Weights state = weights_of(*model);
  const torch::Tensor table = state.at("word_embedding.weight").detach().clone();
  state.erase("word_embedding.weight");
  copy_weights(weights_of(*other), state, "test");
  const torch::NoGradGuard no_gradient;
  const torch::Tensor want =
      other.ptr()->forward(in.x, in.t, table.index_select(0, numbers.flatten()).view({2, 3, -1}));
  // Padding is the row 0 of the table, which a new model has as zeros and never learns.
  const torch::Tensor zeros = torch::cat({torch::zeros({1, c.text_dim}), table.narrow(0, 1, 8)});
  model->named_parameters()["word_embedding.weight"].copy_(zeros);
  const torch::Tensor padded =
      other.ptr()->forward(in.x, in.t, zeros.index_select(0, numbers.flatten()).view({2, 3, -1}));
  EXPECT_LE(relative_distance(model.ptr()->forward(in.x, in.t, numbers), padded), 1e-5);
  EXPECT_GT(relative_distance(want, padded), 1e-4);
  EXPECT_EQ(Wan(c)->named_parameters()["word_embedding.weight"][0].abs().sum().item<double>(), 0.0);
  const Conditioning null = model->unconditional({{}, numbers, {}});
  EXPECT_TRUE(torch::equal(null.captions, torch::tensor({{1, 0, 0}, {1, 0, 0}}, torch::kLong)));
  double count = 0;
  for (const torch::Tensor& parameter : model->parameters()) count += static_cast<double>(parameter.numel());
  EXPECT_EQ(size_of(c, {3, 4, 6}).parameters, count);
  EXPECT_TRUE(has(message_of([&] { model.ptr()->forward(in.x, in.t, in.text); }), "expected numbers of words"));
}

TEST(Wan, TheModelOfClipsHasItsSize) {
  EXPECT_NEAR(size_of(wan_config("wan_s64", "mhla"), {16, 32, 32}).parameters, 30e6, 3e6);
  EXPECT_LT(size_of(wan_config("wan_d64", "mhla"), {16, 32, 32}).parameters, 3e6);  // 6 MB in 16 bits
}

// ---- Files

TEST(Wan, BothNamingsComeBack) {
  const fs::path folder = fs::path(testing::TempDir()) / "wan_files";
  for (const char* attention : {"softmax", "mhla"}) {
    WanConfig c = small_wan(attention);
    if (c.attention == "mhla") c.gate = "silu", c.lepe = 3, c.head_norm = false;
    c.pad_text = c.wide_time = false;
    const Wan model = make_wan(c);
    for (const WanNames names : {WanNames::kOriginal, WanNames::kDiffusers}) {
      fs::remove_all(folder);
      save_wan(*model, folder, names, /*shard_bytes=*/20000);
      const Wan again = load_wan(folder);
      EXPECT_TRUE(torch::equal(run_wan(again), run_wan(model))) << attention;
    }
    const Wan ours(c);
    load_published(*ours.ptr(), weights_of(*model));  // as a training keeps them
    EXPECT_TRUE(torch::equal(run_wan(ours), run_wan(model))) << attention;
  }
  fs::remove_all(folder);
}

TEST(Wan, SaysWhatDoesNotFit) {
  const Wan model = make_wan(small_wan());
  const auto said = [&](const torch::Tensor& x, const torch::Tensor& text) {
    return message_of([&] { model.ptr()->forward(x, torch::tensor({1.0F}), text); });
  };
  const torch::Tensor text = torch::randn({1, 3, 10});
  EXPECT_TRUE(has(said(torch::randn({1, 3, 1, 2, 2}), text), "expected [B, 4, frames, rows, columns]"));
  EXPECT_TRUE(has(said(torch::randn({1, 4, 1, 5, 2}), text), "x has 5 rows of latents, expected a multiple of 2: 4"));
  EXPECT_TRUE(has(said(torch::randn({1, 4, 1, 2, 2}), torch::randn({1, 6, 10})), "expected [B, up to 5, 10]"));
  EXPECT_TRUE(has(message_of([&] {
                    parse_wan_config(parse_json(R"({"_class_name": "WanModel", "model_type": "i2v"})", "c"), "c");
                  }),
                  "models that take an image are not implemented"));
  Weights wrong = weights_of(*model);
  wrong.erase("head.head.bias");
  EXPECT_TRUE(has(message_of([&] { load_published(*model.ptr(), wrong); }), "head.head.bias"));
}

}  // namespace
}  // namespace mhla
