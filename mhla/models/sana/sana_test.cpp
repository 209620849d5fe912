// SANA: recorded numbers, attentions of the same weights, names, files, and what does not fit.
#include "mhla/models/sana/sana.h"

#include <filesystem>

#include "mhla/models/recorded_fixture.h"
#include "mhla/models/sana/sana_recorded.h"
#include "mhla/models/weights_folder.h"
#include "mhla/modules/modules_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

SanaConfig small_sana(const std::string& attention = "linear") {
  SanaConfig c = sana_config("sana_600m", attention);
  c.channels = 4, c.dim = 24, c.depth = 2, c.head_dim = 8, c.cross_heads = 3;
  c.caption_dim = 10, c.caption_tokens = 5, c.blocks = {2, 3};
  return c;
}

Sana make_sana(const SanaConfig& c, int seed = 1) {
  torch::manual_seed(seed);
  Sana model(c);
  const torch::NoGradGuard no_gradient;  // the last layer starts with 0
  for (const auto& item : model->named_parameters())
    if (item.key().find("attn.mix") == std::string::npos) item.value().normal_(0.0, 0.2);
  return model;
}

torch::Tensor run_sana(const Sana& model, std::int64_t rows = 5, std::int64_t columns = 6) {
  torch::manual_seed(7);
  const SanaConfig& c = model->config();
  const torch::Tensor mask = torch::tensor({1, 1, 0, 0, 0, 1, 1, 1, 1, 0}).view({2, 5});
  const torch::NoGradGuard no_gradient;
  return model.ptr()->forward(torch::randn({2, c.channels, rows, columns}), torch::tensor({10.0F, 700.0F}),
                              torch::randn({2, 5, c.caption_dim}), mask);
}

// ---- Recorded

TEST(SanaGolden, OutputsAndGradients) { expect_recorded_cases("sana", 3, sana_recorded()); }

// ---- Attentions

// One head: of 8 channels ReLU leaves none now and then, and a query of zeros reads 0 or, with ReLU + 1e-6, the mean.
SanaConfig one_head(const std::string& attention = "linear") {
  SanaConfig c = small_sana(attention);
  c.head_dim = 24;
  return c;
}

TEST(Sana, UniformMixingIsLinearAttention) {
  SanaConfig uniform = one_head("mhla");
  uniform.mix_init = "uniform";
  const Sana linear = make_sana(one_head());
  const torch::Tensor want = run_sana(linear);
  EXPECT_LE(relative_distance(run_sana(with_attention(*linear, uniform)), want), 2e-5);  // phi is ReLU + 1e-6 here
  const Sana local = with_attention(*linear, one_head("mhla"));
  EXPECT_GT(relative_distance(run_sana(local), want), 1e-3);
  const Sana softmax = with_attention(*linear, one_head("softmax"));
  EXPECT_GT(relative_distance(run_sana(softmax), want), 1e-3);
  EXPECT_TRUE(torch::equal(run_sana(with_attention(*softmax, one_head())), want));  // there and back
  SanaConfig more = uniform;
  more.blocks = {3, 3};  // resampled: still uniform
  EXPECT_LE(relative_distance(run_sana(with_attention(*with_attention(*linear, uniform), more)), want), 2e-5);
  SanaConfig other = uniform;
  other.depth = 1;
  EXPECT_TRUE(has(message_of([&] { with_attention(*linear, other); }), "in more than its attention"));
}

// ---- As a denoiser

struct Noisy {
  torch::Tensor x, t;
  Conditioning condition;
};

Noisy noisy(torch::ScalarType times = torch::kFloat) {
  torch::manual_seed(7);
  Noisy in;
  in.x = torch::randn({2, 4, 5, 6}), in.t = torch::tensor({10.0F, 700.0F}).to(times);
  in.condition.captions = torch::randn({2, 5, 10});
  in.condition.captions_mask = torch::tensor({1, 1, 0, 0, 0, 1, 1, 1, 1, 0}).view({2, 5});
  return in;
}

TEST(SanaDenoiser, UniformMixingIsLinearAttention) {
  SanaConfig uniform = one_head("mhla");
  uniform.mix_init = "uniform";
  const Sana linear = make_sana(one_head()), mhla = with_attention(*linear, uniform);
  const Noisy in = noisy();
  const torch::NoGradGuard no_gradient;
  Denoiser &a = *linear.ptr(), &b = *mhla.ptr();
  const torch::Tensor want = a.denoise(in.x, in.t, in.condition);
  EXPECT_LE(relative_distance(b.denoise(in.x, in.t, in.condition), want), 2e-5);
  Conditioning unmasked = in.condition;
  unmasked.captions_mask = torch::Tensor();
  EXPECT_GT(relative_distance(b.denoise(in.x, in.t, unmasked), want), 1e-3);  // the mask is read
  const torch::Tensor local = with_attention(*linear, one_head("mhla")).ptr()->denoise(in.x, in.t, in.condition);
  EXPECT_GT(relative_distance(local, want), 1e-3);
}

TEST(SanaDenoiser, TakesTheTimesOfTrainingAndOfSamplers) {
  const torch::NoGradGuard no_gradient;
  for (const bool truncate : {true, false}) {
    SanaConfig c = small_sana();
    c.truncate_t = truncate;
    const Sana model = make_sana(c);
    const Noisy in = noisy(), whole = noisy(torch::kLong);
    const torch::Tensor want = model.ptr()->denoise(in.x, in.t, in.condition);
    EXPECT_TRUE(torch::equal(model.ptr()->denoise(whole.x, whole.t, whole.condition), want));
    const torch::Tensor fraction = model.ptr()->denoise(in.x, in.t + 0.9, in.condition);
    EXPECT_EQ(torch::equal(fraction, want), truncate);
  }
}

TEST(SanaDenoiser, SaysWhatItNeeds) {
  const Sana model = make_sana(small_sana());
  const Noisy in = noisy();
  EXPECT_EQ(message_of([&] {
              model.ptr()->denoise(in.x, in.t, {torch::zeros({2}, torch::kLong), {}, {}});
            }),
            "Sana: the conditioning has no captions, expected [B, T, 10]");
  EXPECT_TRUE(has(message_of([&] { model.ptr()->unconditional(in.condition); }), "states of \"\" or of a negative"));
}

TEST(Sana, BlocksWithoutTokensWeighNothing) {
  SanaConfig uniform = one_head("mhla");
  uniform.mix_init = "uniform", uniform.blocks = {4, 4};
  const Sana linear = make_sana(one_head());
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{9, 5}, {2, 3}, {1, 1}})
    EXPECT_LE(
        relative_distance(run_sana(with_attention(*linear, uniform), rows, columns), run_sana(linear, rows, columns)),
        1e-4)
        << rows << " x " << columns;
}

TEST(Sana, MaskedTokensAreNotSeen) {
  const Sana model = make_sana(small_sana());
  const torch::NoGradGuard no_gradient;
  const torch::Tensor x = torch::randn({1, 4, 3, 4}), t = torch::tensor({5.9F}), y = torch::randn({1, 5, 10});
  const torch::Tensor mask = torch::tensor({1, 1, 1, 0, 0}).unsqueeze(0);
  const torch::Tensor want = model.ptr()->forward(x, t, y.narrow(1, 0, 3));
  EXPECT_LE(relative_distance(model.ptr()->forward(x, t, y, mask), want), 1e-5);
  // No token at all: as if all of them were there.
  EXPECT_LE(relative_distance(model.ptr()->forward(x, t, y, torch::zeros_like(mask)), model.ptr()->forward(x, t, y)),
            1e-5);
  EXPECT_TRUE(torch::equal(model.ptr()->forward(x, torch::tensor({5.0F}), y), model.ptr()->forward(x, t, y)));
  SanaConfig fractional = small_sana();
  fractional.truncate_t = false;
  const Sana other = make_sana(fractional);
  EXPECT_FALSE(torch::equal(other.ptr()->forward(x, torch::tensor({5.0F}), y), other.ptr()->forward(x, t, y)));
}

TEST(Sana, RefusesWhatItCannotTake) {
  const Sana model = make_sana(small_sana());
  const torch::Tensor x = torch::zeros({2, 4, 3, 3}), t = torch::zeros({2}), y = torch::zeros({2, 5, 10});
  const auto refusal = [&](const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& c,
                           const torch::Tensor& mask = {}) {
    return message_of([&] { model.ptr()->forward(a, b, c, mask); });
  };
  EXPECT_TRUE(has(refusal(x.narrow(1, 0, 3), t, y), "expected [B, 4, rows, columns]"));
  EXPECT_TRUE(has(refusal(x, t.narrow(0, 0, 1), y), "2 latents with 1 times"));
  EXPECT_TRUE(has(refusal(x, t, y.narrow(2, 0, 9)), "expected [B, T, 10]"));
  EXPECT_TRUE(has(refusal(x, t, y, torch::ones({2, 4})), "mask has shape [2, 4], expected [2, 5]"));
}

TEST(Sana, ConstrainsItsMix) {
  const Sana model = make_sana(small_sana("mhla"));
  {
    const torch::NoGradGuard no_gradient;
    model->blocks()[1]->attention()->mix.fill_(-1.0);
  }
  model.ptr()->constrain();
  EXPECT_EQ(model->blocks()[1]->attention()->mix.max().item<float>(), 0.0F);
  EXPECT_EQ(param_roles(*model).at("blocks.0.attn.mix"), ParamRole::kMix);
}

// ---- Sizes, names, files

TEST(SanaConfigs, HaveTheSizeOfTheFormula) {
  for (const char* attention : {"linear", "mhla", "softmax"}) {
    SanaConfig c = small_sana(attention);
    for (const bool norm : {false, true}) {
      c.qk_norm = norm, c.patch = norm ? 2 : 1;
      double count = 0;
      for (const torch::Tensor& parameter : make_sana(c)->parameters()) count += static_cast<double>(parameter.numel());
      EXPECT_EQ(size_of(c, 4, 4).parameters, count) << attention << norm;
      EXPECT_EQ(run_sana(make_sana(c), 4, 6).size(3), 6);
    }
  }
  EXPECT_EQ(size_of(sana_config("sana_600m"), 32, 32).parameters, 591747872.0);
  EXPECT_NEAR(size_of(sana_config("sana_1600m"), 32, 32).parameters, 1.6e9, 0.05e9);
}

TEST(SanaConfigs, OfDiffusers) {
  const auto parse = [](const std::string& text) {
    return parse_sana_config(parse_json(text, "config.json"), "config.json");
  };
  SanaConfig want = sana_config("sana_600m");
  want.truncate_t = false, want.eps = 1e-15;
  EXPECT_EQ(parse(R"({"_class_name": "SanaTransformer2DModel", "_diffusers_version": "0.32.0", "attention_bias": false,
      "attention_head_dim": 32, "caption_channels": 2304, "cross_attention_dim": 1152, "cross_attention_head_dim": 72,
      "dropout": 0.0, "in_channels": 32, "interpolation_scale": null, "mlp_ratio": 2.5, "norm_elementwise_affine": false,
      "norm_eps": 1e-06, "num_attention_heads": 36, "num_cross_attention_heads": 16, "num_layers": 28,
      "out_channels": 32, "patch_size": 1, "sample_size": 32})"),
            want);
  EXPECT_EQ(parse(write_json(sana_diffusers_json(want))), want);
  EXPECT_EQ(parse(write_json(fields_to_json(small_sana("mhla")))), small_sana("mhla"));
  const auto refusal = [&](const std::string& text) { return message_of([&] { parse(text); }); };
  EXPECT_TRUE(has(refusal(R"({"_class_name": "PixArtTransformer2DModel"})"), "expected SanaTransformer2DModel"));
  EXPECT_TRUE(has(refusal(R"({"_class_name": "SanaTransformer2DModel", "interpolation_scale": 2.0})"),
                  "'interpolation_scale' is 2.0, expected null"));
  EXPECT_TRUE(has(refusal(R"({"_class_name": "SanaTransformer2DModel", "extra": 1})"), "'extra' is unknown"));
  EXPECT_TRUE(has(refusal(R"({"attention": "gla"})"), "expected linear, mhla or softmax"));
}

TEST(SanaNames, ComeBackFromShardsInBothNamings) {
  for (const char* attention : {"linear", "mhla"}) {
    for (const SanaNames names : {SanaNames::kOriginal, SanaNames::kDiffusers}) {
      SanaConfig c = small_sana(attention);
      c.qk_norm = true;
      if (names == SanaNames::kDiffusers) c.truncate_t = false, c.eps = 1e-15;  // as its config says
      const fs::path folder = fs::temp_directory_path() / "mhla_sana_test";
      fs::remove_all(folder);
      const Sana model = make_sana(c);
      save_sana(*model, folder, names, /*shard_bytes=*/30000);
      EXPECT_GT(
          mapped_weights(folder).count(names == SanaNames::kOriginal ? "blocks.1.mlp.depth_conv.conv.weight"
                                                                     : "transformer_blocks.1.attn2.norm_k.weight"),
          0u);
      const Sana other = load_sana(folder);
      EXPECT_TRUE(torch::equal(run_sana(other), run_sana(model)));
      if (names == SanaNames::kOriginal) {
        EXPECT_TRUE(torch::equal(other->y_embedding, model->y_embedding));
      }
      EXPECT_EQ(load_sana(folder, torch::kBFloat16)->parameters()[0].scalar_type(), torch::kBFloat16);
      fs::remove_all(folder);
    }
  }
}

TEST(SanaNames, ThatDoNotFitAreRefused) {
  Sana model = make_sana(small_sana());
  Weights file = to_published(model->config(), state_of(*model), SanaNames::kDiffusers);
  EXPECT_EQ(file.count("y_embedder.y_embedding"), 0u);
  EXPECT_EQ(file.at("transformer_blocks.0.attn2.to_v.bias").sizes(), (std::vector<std::int64_t>{24}));
  file.erase("caption_norm.weight");
  file["pos_embed"] = torch::zeros({1});
  EXPECT_EQ(message_of([&] { load_published(*model, file); }),
            "load_published: missing: caption_norm.weight; left over: nothing");
  SanaConfig narrow = small_sana();
  narrow.caption_dim = 9;
  const Weights other = to_published(narrow, state_of(*make_sana(narrow)), SanaNames::kOriginal);
  const std::string text = message_of([&] { load_published(*model, other); });
  EXPECT_TRUE(has(text, "y_embedder.y_proj.fc1.weight has shape [24, 9], expected [24, 10]")) << text;
}

}  // namespace
}  // namespace mhla
