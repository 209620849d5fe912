// Gemma-2: the recorded numbers of transformers, files, and what does not fit.
#include "mhla/models/text_encoder/gemma2.h"

#include <filesystem>

#include "mhla/models/recorded_fixture.h"
#include "mhla/models/text_encoder/gemma2_recorded.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

Gemma2Config small_gemma2() {
  Gemma2Config c;
  c.vocab_size = 30, c.hidden_size = 24, c.intermediate_size = 20, c.num_hidden_layers = 3;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 8, c.sliding_window = 4;
  return c;
}

Gemma2 make_gemma2(const Gemma2Config& c, torch::ScalarType dtype = torch::kFloat) {
  torch::manual_seed(1);
  Gemma2 model(c, dtype);
  const torch::NoGradGuard no_gradient;
  for (torch::Tensor& parameter : model->parameters()) parameter.normal_(0.0, 0.3);
  return model;
}

TEST(Gemma2Golden, Encodes) { expect_recorded_cases("gemma2", 1, gemma2_recorded()); }

TEST(Gemma2, PaddingChangesNothingBeforeIt) {
  const Gemma2 model = make_gemma2(small_gemma2());
  const torch::NoGradGuard no_gradient;
  const torch::Tensor ids = torch::randint(30, {1, 9}, torch::kLong);
  const torch::Tensor mask = torch::tensor({1, 1, 1, 1, 1, 0, 0, 0, 0}).unsqueeze(0);
  const torch::Tensor alone = model.ptr()->forward(ids.narrow(1, 0, 5), mask.narrow(1, 0, 5)),
                      padded = model.ptr()->forward(ids, mask);
  EXPECT_LE((alone - padded.narrow(1, 0, 5)).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(padded.isfinite().all().item<bool>());  // rows of padding, too
}

TEST(Gemma2, SlidesInEverySecondLayer) {
  Gemma2Config one = small_gemma2();
  one.num_hidden_layers = 1;
  const torch::NoGradGuard no_gradient;
  torch::Tensor ids = torch::randint(30, {1, 8}, torch::kLong);
  const torch::Tensor mask = torch::ones({1, 8}, torch::kLong);
  for (const bool sliding : {true, false}) {
    one.layer_types = {sliding ? "sliding_attention" : "full_attention"};
    const Gemma2 model = make_gemma2(one);
    const torch::Tensor before = model.ptr()->forward(ids, mask);
    torch::Tensor other = ids.clone();
    other[0][1] = (other[0][1] + 1) % 30;
    const torch::Tensor change = (model.ptr()->forward(other, mask) - before).abs().amax({0, 2});
    EXPECT_EQ(change[0].item<float>(), 0.0F);                        // causal
    EXPECT_GT(change[4].item<float>(), 0.0F);                        // 3 back: inside a window of 4
    EXPECT_EQ(change[5].item<float>() == 0.0F, sliding) << sliding;  // 4 back
  }
}

TEST(Gemma2, HasTheSizeOfTheFormula) {
  double count = 0;
  for (const torch::Tensor& parameter : make_gemma2(small_gemma2())->parameters())
    count += static_cast<double>(parameter.numel());
  EXPECT_EQ(size_of(small_gemma2(), 1).parameters, count);
  EXPECT_EQ(size_of(Gemma2Config(), 300).parameters, 2614341888.0);  // gemma-2-2b
}

TEST(Gemma2, ComesBackFromShards) {
  const fs::path folder = fs::temp_directory_path() / "mhla_gemma2_test";
  fs::remove_all(folder);
  const Gemma2 model = make_gemma2(small_gemma2(), torch::kBFloat16);
  save_gemma2(*model, folder, /*shard_bytes=*/4000);
  EXPECT_TRUE(fs::exists(folder / "model.safetensors.index.json"));
  const Gemma2 other = load_gemma2(folder);
  EXPECT_EQ(other->config(), small_gemma2());
  const Weights own = weights_of(*model);
  for (const auto& [name, value] : weights_of(*other)) EXPECT_TRUE(torch::equal(value, own.at(name))) << name;
  const torch::NoGradGuard no_gradient;
  const torch::Tensor ids = torch::randint(30, {2, 6}, torch::kLong), mask = torch::ones_like(ids);
  const torch::Tensor states = other.ptr()->forward(ids, mask);
  EXPECT_EQ(states.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(states, model.ptr()->forward(ids, mask)));
  fs::remove_all(folder);
}

TEST(Gemma2, RefusesWhatDoesNotFit) {
  Gemma2 model = make_gemma2(small_gemma2());
  Weights file;  // as Gemma2ForCausalLM has them
  for (const auto& [name, value] : weights_of(*model)) file["model." + name] = value;
  file["lm_head.weight"] = file.at("model.embed_tokens.weight");
  load_published(*model, file);
  file["layers.3.mlp.up_proj.weight"] = torch::zeros({1});
  EXPECT_EQ(message_of([&] { load_published(*model, file); }),
            "load_published: missing: nothing; left over: layers.3.mlp.up_proj.weight");
  const torch::Tensor ids = torch::full({1, 4}, 30, torch::kLong), mask = torch::ones_like(ids);
  EXPECT_TRUE(has(message_of([&] { model.ptr()->forward(ids, mask); }), "ids from 30 to 30, expected 0 to 29"));
  EXPECT_TRUE(has(message_of([&] { model.ptr()->forward(ids, mask[0]); }), "expected [B, T] for both"));
  EXPECT_TRUE(has(message_of([&] { select_states(torch::zeros({1, 4, 2}), mask, 5); }), "expected 2 to 4"));
  const auto parse = [](const std::string& text) {
    return message_of([&] { parse_gemma2_config(parse_json(text, "config.json"), "config.json"); });
  };
  EXPECT_TRUE(has(parse(R"({"model_type": "gemma3"})"), "'model_type' is gemma3, expected gemma2"));
  EXPECT_TRUE(has(parse(R"({"hidden_activation": "silu"})"), "expected gelu_pytorch_tanh"));
  EXPECT_TRUE(has(parse(R"({"num_key_value_heads": 3})"), "expected a divisor of num_attention_heads"));
  // As transformers writes it, with keys that change nothing.
  const Gemma2Config real = parse_gemma2_config(
      parse_json(R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "bos_token_id": 2,
                     "hidden_act": "gelu_pytorch_tanh", "head_dim": 256, "rope_theta": 10000.0, "use_cache": true,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "sliding_window_size": 4096,
                     "final_logit_softcapping": 30.0, "torch_dtype": "float32", "model_type": "gemma2"})",
                 "config.json"),
      "config.json");
  EXPECT_EQ(real, Gemma2Config());
}

}  // namespace
}  // namespace mhla
