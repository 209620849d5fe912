// umT5: recorded numbers, padding, names, files, sizes, and what does not fit.
#include "mhla/models/text_encoder/umt5.h"

#include <filesystem>

#include "mhla/models/recorded_fixture.h"
#include "mhla/models/text_encoder/umt5_recorded.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

namespace fs = std::filesystem;

Umt5Config small_umt5() {
  Umt5Config c;
  c.vocab_size = 30, c.d_model = 12, c.d_kv = 4, c.d_ff = 16, c.num_layers = 2, c.num_heads = 3;
  return c;
}

Umt5 make_umt5() {
  torch::manual_seed(1);
  Umt5 model(small_umt5());
  const torch::NoGradGuard no_gradient;
  for (const torch::Tensor& parameter : model->parameters()) parameter.normal_(0.0, 0.3);
  return model;
}

TEST(Umt5Golden, OutputsGradientsAndBuckets) { expect_recorded_cases("video/umt5", 3, umt5_recorded()); }

TEST(Umt5, PaddingDoesNotChangeATextsStates) {
  Umt5 model = make_umt5();
  const torch::NoGradGuard no_gradient;
  const torch::Tensor ids = torch::tensor({5, 7, 9, 1, 0, 0}).view({1, 6});
  const torch::Tensor mask = torch::tensor({1, 1, 1, 1, 0, 0}).view({1, 6});
  const torch::Tensor alone = model->forward(ids.narrow(1, 0, 4)), padded = model->forward(ids, mask);
  EXPECT_LE((padded.narrow(1, 0, 4) - alone).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(model->forward(ids, torch::zeros_like(mask)).isfinite().all().item<bool>());
}

TEST(Umt5, TheXxlHasItsParameters) {
  EXPECT_EQ(size_of(Umt5Config(), 512).parameters, 5680910336.0);
  double count = 0;
  const Umt5 model = make_umt5();
  for (const torch::Tensor& parameter : model->parameters()) count += static_cast<double>(parameter.numel());
  EXPECT_EQ(size_of(small_umt5(), 8).parameters, count);
}

TEST(Umt5, BothNamingsComeBack) {
  Umt5 model = make_umt5();
  const torch::NoGradGuard no_gradient;
  const torch::Tensor ids = torch::tensor({3, 4, 1}).view({1, 3});
  const fs::path folder = fs::path(testing::TempDir()) / "umt5_files";
  for (const Umt5Names names : {Umt5Names::kTransformers, Umt5Names::kWan}) {
    fs::remove_all(folder);
    save_umt5(*model, folder, names, /*shard_bytes=*/4000);
    EXPECT_TRUE(torch::equal(load_umt5(folder, torch::kFloat)->forward(ids), model->forward(ids)));
  }
  fs::remove_all(folder);
  const Weights wan = to_published(*model, weights_of(*model), Umt5Names::kWan);
  for (const char* name : {"token_embedding.weight", "blocks.0.norm1.weight", "blocks.1.attn.q.weight",
                           "blocks.0.pos_embedding.embedding.weight", "blocks.1.ffn.gate.0.weight", "norm.weight"})
    EXPECT_EQ(wan.count(name), 1u) << name;
}

TEST(Umt5, SaysWhatDoesNotFit) {
  Umt5 model = make_umt5();
  EXPECT_TRUE(has(message_of([&] {
                    model->forward(torch::tensor({30}).view({1, 1}));
                  }),
                  "a token is 30, expected 0 to 29"));
  EXPECT_TRUE(has(message_of([&] {
                    model->forward(torch::zeros({1, 3}, torch::kLong), torch::zeros({1, 2}));
                  }),
                  "expected [B, T] of both"));
  const auto parse = [](const char* text) {
    return message_of([&] { parse_umt5_config(parse_json(text, "c"), "config.json"); });
  };
  EXPECT_TRUE(has(parse(R"({"model_type": "t5"})"), "config.json: 'model_type' is t5, expected umt5"));
  EXPECT_TRUE(has(parse(R"({"d_model": 0})"), "d_model is 0"));
  EXPECT_TRUE(has(parse(R"({"relative_attention_num_buckets": 31})"), "expected a multiple of 4"));
  Weights wrong = to_published(*model, weights_of(*model), Umt5Names::kTransformers);
  wrong.erase("encoder.final_layer_norm.weight");
  EXPECT_TRUE(has(message_of([&] { load_published(*model, wrong); }), "encoder.final_layer_norm.weight"));
}

}  // namespace
}  // namespace mhla
