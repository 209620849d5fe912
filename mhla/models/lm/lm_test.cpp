// Language models: sizes, every causal attention in one pass and streaming, packed documents, lengths, recomputation.
#include <gtest/gtest.h>

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/models/lm/decoder.h"
#include "mhla/models/lm/lm_fixture.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/ops/torch.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

std::int64_t lm_parameters(const char* name, const char* attention) {
  return count_parameters(*LanguageModel(lm_config(name, attention)));
}

TEST(LanguageModels, HaveTheirParameters) {
  EXPECT_EQ(lm_parameters("mhla_340m", "mhla"), 341'130'240);  // the published 341.1 M
  EXPECT_EQ(lm_parameters("mhla_130m", "mhla"), 130'787'328);
  EXPECT_EQ(lm_parameters("mhla_30m", "mhla"), 29'318'016);
  EXPECT_EQ(lm_parameters("mhla_10m", "mhla"), 10'142'208);
}

TEST(LanguageModels, MatchTheParametersOfSoftmaxAttention) {
  for (const char* name : {"mhla_10m", "mhla_30m"}) {
    const auto softmax = static_cast<double>(lm_parameters(name, "softmax"));
    for (const std::string& attention : kCausal) {
      const double off = static_cast<double>(lm_parameters(name, attention.c_str())) / softmax - 1;
      EXPECT_LE(std::abs(off), 0.03) << name << " " << attention;
    }
  }
}

TEST(LanguageModels, StartAsPublishedModelsDo) {
  torch::manual_seed(1);
  const Weights weights = weights_of(*LanguageModel(lm_config("mhla_10m")));
  for (const char* name :
       {"model.embeddings.weight", "model.layers.3.attn.qkv.weight", "model.layers.9.mlp.down_proj.weight"})
    EXPECT_NEAR(weights.at(name).std().item<double>(), 0.02, 1e-3) << name;
  const torch::Tensor mix = weights.at("model.layers.0.attn.mix");
  EXPECT_EQ(mix.size(0), 32);
  EXPECT_FLOAT_EQ(mix[3][3].item<float>(), 0.25f);
  EXPECT_EQ(mix[3][4].item<float>(), 0.0f);
  EXPECT_EQ(weights.count("lm_head.weight"), 0u);
}

TEST(LanguageModels, LearnWithEveryAttention) {
  for (const std::string& attention : kCausal) {
    LanguageModel model = make_lm(small_lm(attention));
    const torch::Tensor tokens = tokens_of(2, 40), logits = model->forward(tokens);
    ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{2, 40, 97})) << attention;
    torch::cross_entropy_loss(logits.flatten(0, 1), tokens.flatten()).backward();
    for (const auto& item : model->named_parameters()) {
      if (!item.value().requires_grad()) continue;
      ASSERT_TRUE(item.value().grad().defined()) << attention << ": " << item.key() << " takes no part";
      EXPECT_TRUE(torch::isfinite(item.value().grad()).all().item<bool>()) << attention << ": " << item.key();
    }
    // No token sees a later one.
    const torch::NoGradGuard no_gradient;
    torch::Tensor other = tokens.clone();
    other.narrow(1, 23, 17).fill_(5);
    EXPECT_LE(relative_distance(model->forward(other).narrow(1, 0, 23), logits.detach().narrow(1, 0, 23)), 1e-6)
        << attention;
    EXPECT_GT(relative_distance(model->forward(other).narrow(1, 23, 1), logits.detach().narrow(1, 23, 1)), 1e-3)
        << attention;
  }
}

TEST(LanguageModels, KeepPackedDocumentsApart) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor bounds = torch::tensor({0, 13, 13, 14, 60, 90}, torch::kLong), tokens = tokens_of(1, 90);
  for (const std::string& attention : kCausal) {
    LanguageModel model = make_lm(small_lm(attention));
    const torch::Tensor packed = model->forward(tokens, bounds);
    for (std::int64_t i = 0; i + 1 < bounds.numel(); ++i) {
      const std::int64_t from = bounds[i].item<std::int64_t>(), count = bounds[i + 1].item<std::int64_t>() - from;
      if (count == 0) continue;
      const torch::Tensor alone = model->forward(tokens.narrow(1, from, count));
      EXPECT_LE(relative_distance(packed.narrow(1, from, count), alone), 1e-5) << attention << " " << i;
    }
  }
}

TEST(LanguageModels, StreamWhatTheyComputeAtOnce) {
  const torch::NoGradGuard no_gradient;
  for (const std::string& attention : kCausal) {
    LanguageModel model = make_lm(small_lm(attention));
    const torch::Tensor tokens = tokens_of(3, 120), want = model->forward(tokens);
    // Prompts of different lengths, each by itself, then one token at a time together.
    const std::int64_t lengths[] = {64, 7, 101};
    std::vector<LmState> alone;
    for (std::int64_t b = 0; b < 3; ++b) {
      alone.push_back(model->begin());
      const torch::Tensor prompt = tokens.narrow(0, b, 1).narrow(1, 0, lengths[b]);
      const torch::Tensor logits = model->prefill(prompt, alone.back(), /*piece=*/b == 1 ? 2048 : 33);
      EXPECT_LE(relative_distance(logits[0], want[b][lengths[b] - 1]), 1e-5) << attention;
    }
    LmState state = join(std::move(alone));
    EXPECT_EQ(state.positions(), (std::vector<std::int64_t>{64, 7, 101}));
    for (std::int64_t t = 0; t < 19; ++t) {
      std::vector<std::int64_t> next;
      for (std::int64_t b = 0; b < 3; ++b) next.push_back(tokens[b][lengths[b] + t].item<std::int64_t>());
      const torch::Tensor logits = model->decode(torch::tensor(next, torch::kLong), state);
      for (std::int64_t b = 0; b < 3; ++b)
        EXPECT_LE(relative_distance(logits[b], want[b][lengths[b] + t]), 1e-5) << attention << " " << b << " " << t;
    }
    EXPECT_GT(state.bytes(), 0);
  }
}

// Where nothing can be recorded a decoder is decode().
TEST(LanguageModels, DecodeThroughADecoder) {
  LanguageModel model = make_lm(small_lm());
  LmState state = model->begin(2), want = model->begin(2);
  Decoder decoder(*model);
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor next = tokens_of(2, 3).select(1, step);
    EXPECT_TRUE(torch::equal(decoder.decode(next, state), model->decode(next, want)));
    EXPECT_FALSE(decoder.recorded());
  }
  EXPECT_TRUE(
      has(message_of([&] { decoder.decode(torch::zeros({3}, torch::kLong), state); }), "tokens of 3 sequences"));
  EXPECT_EQ(state.positions(), (std::vector<std::int64_t>{3, 3}));
}

TEST(LanguageModels, StatesGoThroughFiles) {
  const torch::NoGradGuard no_gradient;
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "lm_state.safetensors";
  for (const std::string& attention : kCausal) {
    LanguageModel model = make_lm(small_lm(attention));
    LmState state = model->begin(2);
    model->prefill(tokens_of(2, 77), state);
    save_state(*model, state, file, {{"text", "so far"}});
    std::map<std::string, std::string> notes;
    LmState loaded = load_state(*model, file, &notes);
    EXPECT_EQ(notes.at("text"), "so far");
    EXPECT_EQ(loaded.positions(), state.positions());
    const torch::Tensor next = tokens_of(2, 1).flatten();
    EXPECT_TRUE(torch::equal(model->decode(next, loaded), model->decode(next, state))) << attention;
    model->parameters()[0].add_(1);
    EXPECT_TRUE(has(message_of([&] { load_state(*model, file); }), "is the state of other weights")) << attention;
  }
  EXPECT_TRUE(has(message_of([&] { load_state(*make_lm(small_lm("mhla")), file); }), "is the state of another model"));
  std::filesystem::remove(file);
}

TEST(LanguageModels, GoBeyondTheirLengthByPolicy) {
  const torch::NoGradGuard no_gradient;
  LanguageModel model = make_lm(small_lm());  // 16 rows of 8 tokens
  const torch::Tensor tokens = tokens_of(2, 300);
  EXPECT_TRUE(has(message_of([&] { model->hidden(tokens); }), "300 tokens need 38 chunks of 8, mix has 16 rows"));
  model->set_length_policy(LengthPolicy::kTruncateLeft);
  EXPECT_TRUE(torch::equal(model->hidden(tokens), model->hidden(tokens.narrow(1, 172, 128))));
  EXPECT_TRUE(has(message_of([&] { (void)model->begin(); }), "truncate_left needs the whole length"));
  EXPECT_TRUE(has(message_of([&] { model->hidden(tokens.narrow(0, 0, 1), torch::tensor({0, 300})); }), "cu_seqlens"));
  model->set_length_policy(LengthPolicy::kRechunk);
  LmConfig coarse = small_lm();
  coarse.chunk = 19, coarse.context = 16 * 19;  // ceil(300 / 16)
  LanguageModel other = make_lm(coarse);
  load_weights(*other, weights_of(*model));
  EXPECT_TRUE(torch::equal(model->hidden(tokens), other->hidden(tokens)));
  EXPECT_EQ(describe(model->plan(300)), "rechunk: tokens 0 to 299, 16 chunks of 19");
  const torch::Tensor fits = tokens.narrow(1, 0, 128);
  const torch::Tensor as_trained = model->hidden(fits);  // chunks are 8 again
  model->set_length_policy(LengthPolicy::kExtend);
  EXPECT_TRUE(torch::equal(model->hidden(fits), as_trained));
  LmState state = model->begin(2);
  const torch::Tensor want = model->forward(tokens);
  EXPECT_LE(relative_distance(model->prefill(tokens, state, 50), want.select(1, 299)), 1e-5);
  model->set_length_policy(LengthPolicy::kError);
  LmState bounded = model->begin(2);
  EXPECT_TRUE(has(message_of([&] { model->prefill(tokens, bounded); }), "300 more tokens pass the 128"));
  // Others have no limit.
  EXPECT_EQ(make_lm(small_lm("gla"))->hidden(tokens).size(1), 300);
}

void expect_same_bits_recomputed(const std::string& attention, bool autocast) {
  LanguageModel model = make_lm(small_lm(attention));
  const torch::Tensor tokens = tokens_of(2, 50);
  std::vector<torch::Tensor> gradients[2];
  torch::Tensor losses[2];
  for (const bool again : {false, true}) {
    model->zero_grad();
    model->set_recompute(again);
    ops::set_autocast(at::kCPU, autocast);
    losses[again] = torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten());
    ops::set_autocast(at::kCPU, false);
    at::autocast::clear_cache();
    losses[again].backward();
    for (const torch::Tensor& parameter : model->parameters()) {
      if (parameter.requires_grad()) gradients[again].push_back(parameter.grad().clone());
    }
  }
  EXPECT_TRUE(torch::equal(losses[0], losses[1]));
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_TRUE(torch::equal(gradients[0][i], gradients[1][i])) << attention << " " << i;
}

TEST(LanguageModels, RecomputeWithTheSameBits) {
  for (const std::string& attention : {std::string("mhla"), std::string("softmax"), std::string("gdn")})
    expect_same_bits_recomputed(attention, /*autocast=*/false);
}

TEST(LanguageModels, RecomputeWithTheSameBitsInBf16) { expect_same_bits_recomputed("mhla", /*autocast=*/true); }

TEST(LanguageModels, CastButForMix) {
  const torch::NoGradGuard no_gradient;
  LanguageModel model = make_lm(small_lm());
  const torch::Tensor tokens = tokens_of(1, 100), want = model->forward(tokens);
  model->cast(torch::kBFloat16);
  EXPECT_EQ(model->blocks()[0]->attention()->as<MhlaAttentionImpl>()->mix.scalar_type(), torch::kFloat);
  const torch::Tensor got = model->forward(tokens);
  EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
  EXPECT_LE(relative_distance(got.to(torch::kFloat), want), 0.05);
  LmState state = model->begin();
  EXPECT_LE(relative_distance(model->prefill(tokens, state, 30).to(torch::kFloat), got.select(1, 99).to(torch::kFloat)),
            0.02);
}

// Steps of one token use other products than whole sequences do.
TEST(LanguageModels, DecodeInBf16) {
  const torch::NoGradGuard no_gradient;
  LanguageModel model = make_lm(small_lm());
  const torch::Tensor tokens = tokens_of(2, 100), want = model->forward(tokens);
  model->cast(torch::kBFloat16);
  LmState state = model->begin(2);
  model->prefill(tokens.narrow(1, 0, 60), state);
  torch::Tensor last;
  for (std::int64_t i = 60; i < 100; ++i) last = model->decode(tokens.select(1, i), state);
  EXPECT_EQ(last.scalar_type(), torch::kBFloat16);
  EXPECT_LE(relative_distance(last.to(torch::kFloat), want.select(1, 99)), 0.05);
}

// Steps of bf16 at what sixteen blocks add up would be six times those of its last norm alone.
TEST(LanguageModels, AddUpInF32) {
  const torch::NoGradGuard no_gradient;
  LmConfig config = small_lm();
  config.layers = 16;
  LanguageModel half = make_lm(config, 1), wide = make_lm(config, 1);
  for (LanguageModel* model : {&half, &wide}) {
    (*model)->named_parameters()["model.embeddings.weight"].mul_(50);  // the blocks add little to it
    (*model)->cast(torch::kBFloat16);
  }
  wide->cast(torch::kFloat);
  const torch::Tensor tokens = tokens_of(1, 100), want = wide->hidden(tokens);
  EXPECT_LE(((half->hidden(tokens).to(torch::kFloat) - want).norm() / want.norm()).item<double>(), 0.003);
}

TEST(LanguageModels, SayWhatIsWrong) {
  LanguageModel model = make_lm(small_lm());
  const auto said = [&](const auto& call) { return message_of(call); };
  EXPECT_EQ(said([&] {
              model->hidden(torch::full({1, 3}, 97, torch::kLong));
            }),
            "LanguageModel::hidden: a token is 97, expected 0 to 96");
  EXPECT_EQ(said([&] {
              model->hidden(torch::full({1, 3}, -1, torch::kLong));
            }),
            "LanguageModel::hidden: a token is -1, expected 0 to 96");
  EXPECT_EQ(said([&] { model->hidden(torch::zeros({3}, torch::kLong)); }),
            "LanguageModel::hidden: tokens are Long of shape [3], expected int64 of shape [B, N]");
  LmState state = model->begin(2);
  EXPECT_TRUE(has(said([&] { model->decode(torch::zeros({3}, torch::kLong), state); }), "tokens of 3 sequences"));
  EXPECT_TRUE(has(said([&] { model->prefill(torch::zeros({2, 0}, torch::kLong), state); }), "no tokens"));
}

TEST(LmConfigs, GoOutAndComeBack) {
  for (const std::string& name : lm_names()) {
    LmConfig c = lm_config(name, "gla");
    c.vocab = 1234, c.mix_sigma = 2.5;
    EXPECT_EQ(parse_lm_config(fields_to_json(c), "doc"), c) << name;
  }
  const LmConfig few = parse_lm_config(parse_json(R"({"model": "mhla_30m", "attention": "gdn"})", "doc"), "doc");
  EXPECT_EQ(few.dim, 384);
  EXPECT_EQ(few.heads, 3);
  EXPECT_EQ(lm_config("mhla_340m", "softmax").heads, 16);  // of 64
}

TEST(LmConfigs, SayWhatIsWrong) {
  const auto said = [](const char* text) {
    return message_of([&] { parse_lm_config(parse_json(text, "doc"), "config.json"); });
  };
  EXPECT_EQ(said(R"({"model": "mhla_10m", "vocabs": 10})"), "config.json: 'vocabs' is unknown, nearest is 'vocab'");
  EXPECT_EQ(said(R"({"model": "mhla_7b"})"),
            "config.json: config: model is 'mhla_7b', expected one of mhla_10m, mhla_30m, mhla_130m, mhla_340m");
  EXPECT_EQ(said(R"({"attention": "mala"})"),
            "config.json: config: attention is 'mala', expected one of mhla, softmax, linear, gla, mamba, mamba2, gdn");
  EXPECT_TRUE(has(said(R"({"heads": 5})"), "dim is 1024, expected a multiple of heads = 5"));
  EXPECT_TRUE(has(said(R"({"expand_k": 0.3})"), "expand_k is 0.3, which gives 4 heads of 76.8 channels"));
  EXPECT_TRUE(has(said(R"({"official": true, "attention": "gla"})"), "official is true for gla"));
  EXPECT_TRUE(has(said(R"({"family": "deit"})"), "family is 'deit', expected lm"));
  EXPECT_TRUE(has(said(R"({"mix_init": "sine"})"), "sine"));
}

}  // namespace
}  // namespace mhla
