// Weights of language models: published names in and out, folders, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/models/lm/lm.h"
#include "mhla/models/weights_file.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

LmConfig tiny_lm(const std::string& attention) {
  LmConfig c;
  c.model = "mhla_10m", c.attention = attention, c.vocab = 50, c.dim = 32, c.layers = 2, c.heads = 2, c.mlp = 64;
  c.context = 64, c.chunk = 8, c.match = false;
  return c;
}

LanguageModel seeded_lm(const LmConfig& c, std::int64_t seed) {
  torch::manual_seed(static_cast<std::uint64_t>(seed));
  return LanguageModel(c);
}

TEST(LmWeights, HaveThePublishedNames) {
  const Weights mhla = published_weights(*seeded_lm(tiny_lm("mhla"), 1));
  const auto shape = [](const Weights& weights, const char* name) { return weights.at(name).sizes().vec(); };
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(shape(mhla, "model.embeddings.weight"), (Shape{50, 32}));
  EXPECT_EQ(shape(mhla, "model.layers.1.attn_norm.weight"), Shape{32});
  EXPECT_EQ(shape(mhla, "model.layers.1.attn.q_proj.weight"), (Shape{16, 32}));
  EXPECT_EQ(shape(mhla, "model.layers.1.attn.k_proj.weight"), (Shape{16, 32}));
  EXPECT_EQ(shape(mhla, "model.layers.1.attn.v_proj.weight"), (Shape{32, 32}));
  EXPECT_EQ(shape(mhla, "model.layers.1.attn.g_proj.weight"), (Shape{32, 32}));
  EXPECT_EQ(shape(mhla, "model.layers.1.attn.o_proj.weight"), (Shape{32, 32}));
  EXPECT_EQ(shape(mhla, "model.layers.1.attn.mixing_matrix"), (Shape{8, 8, 1, 1, 1, 1}));
  EXPECT_EQ(shape(mhla, "model.layers.1.attn.g_norm_swish_gate.weight"), Shape{16});
  EXPECT_EQ(shape(mhla, "model.layers.1.mlp.gate_proj.weight"), (Shape{64, 32}));
  EXPECT_EQ(shape(mhla, "model.layers.1.mlp.down_proj.weight"), (Shape{32, 64}));
  EXPECT_EQ(shape(mhla, "model.norm.weight"), Shape{32});
  EXPECT_EQ(mhla.size(), 2u + 2u * 12u);
  const Weights gla = published_weights(*seeded_lm(tiny_lm("gla"), 1));
  EXPECT_EQ(shape(gla, "model.layers.0.attn.gk_proj.0.weight"), (Shape{16, 32}));
  EXPECT_EQ(shape(gla, "model.layers.0.attn.gk_proj.1.bias"), Shape{16});
  const Weights softmax = published_weights(*seeded_lm(tiny_lm("softmax"), 1));
  EXPECT_EQ(shape(softmax, "model.layers.0.attn.o_proj.weight"), (Shape{32, 32}));
}

TEST(LmWeights, GoInAndComeBack) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor tokens = torch::randint(50, {2, 30}, torch::kLong);
  for (const char* attention : {"mhla", "softmax", "linear", "gla", "mamba", "mamba2", "gdn"}) {
    for (const bool gate : {true, false}) {
      LmConfig c = tiny_lm(attention);
      c.gate = gate, c.tied = gate;
      LanguageModel model = seeded_lm(c, 1), other = seeded_lm(c, 2);
      Weights published = published_weights(*model);
      if (c.tied) published["lm_head.weight"] = published.at("model.embeddings.weight");  // as some files have it
      load_published(*other, published);
      EXPECT_TRUE(torch::equal(other->forward(tokens), model->forward(tokens))) << attention;
    }
  }
}

TEST(LmWeights, RefuseWhatDoesNotFit) {
  LanguageModel model = seeded_lm(tiny_lm("mhla"), 1);
  const Weights before = weights_of(*model);
  Weights published = published_weights(*model);
  for (auto& [name, value] : published) value = torch::zeros_like(value);
  published.erase("model.norm.weight");
  EXPECT_EQ(message_of([&] { load_published(*model, published); }),
            "load_published: missing: model.norm.weight; left over: nothing");
  published = published_weights(*model);
  published.erase("model.layers.1.attn.mixing_matrix");
  EXPECT_EQ(message_of([&] { load_published(*model, published); }),
            "load_published: missing: model.layers.1.attn.mixing_matrix; left over: nothing");
  // In the names of the file, of a layer that is missing as a whole and of weights that are one with us, too.
  for (auto it = published.begin(); it != published.end();)
    it = it->first.rfind("model.layers.1.attn.", 0) == 0 ? published.erase(it) : std::next(it);
  published["model.layers.2.attn.q_proj.weight"] = torch::zeros({16, 32});
  published["model.layers.0.attn.k_proj.weight"] = torch::zeros({8, 32});
  EXPECT_EQ(
      message_of([&] { load_published(*model, published); }),
      "load_published: missing: model.layers.1.attn.g_norm_swish_gate.weight, model.layers.1.attn.g_proj.weight, "
      "model.layers.1.attn.k_proj.weight, model.layers.1.attn.mixing_matrix, model.layers.1.attn.o_proj.weight, "
      "model.layers.1.attn.q_proj.weight, model.layers.1.attn.v_proj.weight; left over: "
      "model.layers.2.attn.q_proj.weight; model.layers.0.attn.k_proj.weight has shape [8, 32], expected [16, 32]");
  // Of a file of something else a few names are enough.
  const std::string other = message_of([&] { load_published(*model, {{"weight", torch::zeros({1})}}); });
  EXPECT_TRUE(has(other, " more; left over: weight")) << other;
  EXPECT_EQ(std::count(other.begin(), other.end(), ','), 2) << other;
  published = published_weights(*model);
  published["lm_head.weight"] = torch::ones({50, 32});
  EXPECT_TRUE(has(message_of([&] { load_published(*model, published); }), "lm_head.weight differs"));
  for (const auto& [name, value] : weights_of(*model)) EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
}

TEST(LmWeights, LieInAFolder) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "lm_weights_test";
  std::filesystem::remove_all(folder);
  LanguageModel model = seeded_lm(tiny_lm("mhla"), 1);
  save_language_model(*model, folder);
  LanguageModel other = load_language_model(folder);
  EXPECT_EQ(other->config(), model->config());
  const torch::NoGradGuard no_gradient;
  const torch::Tensor tokens = torch::randint(50, {2, 30}, torch::kLong);
  EXPECT_TRUE(torch::equal(other->forward(tokens), model->forward(tokens)));
  write_weights(folder / "model.safetensors", {{"x", torch::zeros({2})}});
  EXPECT_TRUE(has(message_of([&] { load_language_model(folder); }), "model.safetensors: load_weights: missing: "));
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(has(message_of([&] { load_language_model(folder); }), "config.json"));
}

}  // namespace
}  // namespace mhla
