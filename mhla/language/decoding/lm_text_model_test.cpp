// Scores of a real model against its own logits in one pass, request by request.
#include "mhla/language/decoding/lm_text_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mhla/language/choices.h"
#include "mhla/language/decoding/generator.h"
#include "mhla/language/recall.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

LanguageModel make_lm_text(const std::string& attention = "mhla") {
  LmConfig c;
  c.model = "mhla_10m", c.attention = attention;
  c.vocab = 257, c.dim = 64, c.layers = 2, c.heads = 2, c.mlp = 160, c.context = 64, c.chunk = 8;
  c.match = has_mlp(attention);
  torch::manual_seed(1);
  LanguageModel model(c);
  const torch::NoGradGuard no_gradient;
  for (const auto& item : model->named_parameters())
    if (item.value().dim() == 2 && item.key().find(".mix") == std::string::npos) item.value().mul_(5);
  return model;
}

std::vector<std::uint32_t> ids(const std::string& text) { return byte_tokenizer()->encode(text); }

// Of the last `scored` tokens, by definition.
TextScore by_hand(LanguageModel& model, const std::vector<std::uint32_t>& tokens, std::size_t scored) {
  const torch::NoGradGuard no_gradient;
  const std::vector<std::int64_t> wide(tokens.begin(), tokens.end());
  const torch::Tensor input =
      torch::tensor(wide, torch::kLong).slice(0, 0, -1).unsqueeze(0);  // the last one is a target
  const torch::Tensor logits = model->forward(input)[0].to(torch::kDouble);
  TextScore score{0.0, true};
  for (std::size_t t = tokens.size() - scored; t < tokens.size(); ++t) {
    const torch::Tensor row = logits[static_cast<std::int64_t>(t) - 1];
    score.log_likelihood += (row[wide[t]] - row.logsumexp(0)).item<double>();
    score.greedy = score.greedy && row.argmax().item<std::int64_t>() == wide[t];
  }
  return score;
}

std::vector<std::uint32_t> opened(std::vector<std::uint32_t> tokens) {
  tokens.insert(tokens.begin(), 256);
  return tokens;
}

TEST(LmTextModel, ScoresAreThoseOfOnePass) {
  for (const char* attention : {"mhla", "softmax", "gdn"}) {
    LanguageModel model = make_lm_text(attention);
    LmTextOptions options;
    options.at_once = 70;  // several passes
    LmTextModel text(model, byte_tokenizer(), options);
    std::vector<TextRequest> requests;
    for (const char* context : {"a", "some context", "a longer one, with more words in it"})
      for (const char* continuation : {" x", " and on"}) requests.push_back({ids(context), ids(continuation)});
    TextContext greedy = read_texts(*model, *byte_tokenizer(), {"go"});  // what the model itself says
    GenerateOptions o;
    o.max_tokens = 5, o.sampler.temperature = 0.0, o.end_with_document = false;
    generate(*model, *byte_tokenizer(), greedy, o);
    requests.push_back({ids("go"), {greedy.tokens[0].begin() + 3, greedy.tokens[0].end()}});
    const std::vector<TextScore> scores = text.score(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      std::vector<std::uint32_t> tokens = opened(requests[i].context);
      tokens.insert(tokens.end(), requests[i].continuation.begin(), requests[i].continuation.end());
      const TextScore want = by_hand(model, tokens, requests[i].continuation.size());
      EXPECT_NEAR(scores[i].log_likelihood, want.log_likelihood, 1e-4) << attention << " " << i;
      EXPECT_EQ(scores[i].greedy, want.greedy) << attention << " " << i;
    }
    EXPECT_TRUE(scores.back().greedy) << attention;
  }
}

TEST(LmTextModel, LongTextsByPolicy) {
  LanguageModel model = make_lm_text();
  std::string words;
  for (int i = 0; i < 40; ++i) words += static_cast<char>('a' + i % 26), words += i % 3 == 0 ? " " : "e";
  const std::vector<std::uint32_t> longer = ids(words + words), tail = ids(" end");  // 160 tokens, 64 have rows
  const std::vector<TextRequest> request = {{longer, tail}};
  EXPECT_TRUE(has(message_of([&] { LmTextModel(model, byte_tokenizer()).score(request); }),
                  "eval lm: request 0 has 165 tokens, expected at most 65"));
  LmTextOptions left;
  left.policy = LengthPolicy::kTruncateLeft;
  std::vector<std::uint32_t> tokens(longer.end() - 61, longer.end());
  tokens.insert(tokens.end(), tail.begin(), tail.end());  // 65: the last one is no input
  EXPECT_NEAR(LmTextModel(model, byte_tokenizer(), left).score(request)[0].log_likelihood,
              by_hand(model, tokens, 4).log_likelihood, 1e-4);
  // A document in windows: 64 tokens behind the opening one, then 64 behind the last of those, and so on.
  const std::vector<std::uint32_t> all = opened(longer);
  double want = 0.0;
  for (std::size_t at = 1; at < all.size(); at += 64) {
    const std::size_t end = std::min(all.size(), at + 64);
    want += by_hand(model,
                    {all.begin() + static_cast<std::ptrdiff_t>(at) - 1, all.begin() + static_cast<std::ptrdiff_t>(end)},
                    end - at)
                .log_likelihood;
  }
  const std::vector<TextRequest> document = {{{}, longer, /*windows=*/true}}, choice = {{{}, longer}};
  EXPECT_EQ(
      message_of([&] { LmTextModel(model, byte_tokenizer()).score(choice); }),
      "eval lm: request 0 has 161 tokens, expected at most 65; --length-policy truncate_left keeps the last ones, "
      "extend goes on");
  EXPECT_NEAR(LmTextModel(model, byte_tokenizer()).score(document)[0].log_likelihood, want, 1e-3);
  // Extended, in one pass.
  LmTextOptions further;
  further.policy = LengthPolicy::kExtend;
  LanguageModel extended = make_lm_text();
  LmTextModel text(extended, byte_tokenizer(), further);
  EXPECT_NEAR(text.score(document)[0].log_likelihood, by_hand(extended, all, longer.size()).log_likelihood, 1e-3);
  LmTextOptions rechunk;
  rechunk.policy = LengthPolicy::kRechunk;
  EXPECT_TRUE(has(message_of([&] { LmTextModel(model, byte_tokenizer(), rechunk); }), "length policy rechunk"));
}

TEST(LmTextModel, LogitsThatAreNoNumbersAreRefused) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    LanguageModel model = make_lm_text();
    {
      const torch::NoGradGuard no_gradient;
      model->named_parameters()["model.embeddings.weight"][7].fill_(bad);  // of a token that is in none of the texts
    }
    LmTextModel text(model, byte_tokenizer());
    const std::vector<TextRequest> requests = {{ids("a"), ids(" b")}, {ids("a"), ids(" c")}};
    EXPECT_EQ(message_of([&] { text.score(requests); }), "eval lm: the logits of request 0 are NaN or infinite");
    const std::vector<std::uint32_t> tokens = ids("abc");
    EXPECT_EQ(message_of([&] {
                text.likeliest(tokens, std::vector<std::int64_t>{0, 2});
              }),
              "eval lm: the logits are NaN or infinite");
    EXPECT_TRUE(has(message_of([&] { text.generate(tokens, 3, {}); }),
                    "generate: the logits behind token 0 are NaN or infinite"));
  }
}

TEST(LmTextModel, WritesAndRecalls) {
  LanguageModel model = make_lm_text();
  LmTextModel text(model, byte_tokenizer());
  TextContext context = read_texts(*model, *byte_tokenizer(), {"hello"});
  GenerateOptions o;
  o.max_tokens = 20, o.sampler.temperature = 0.0;
  EXPECT_EQ(text.generate(ids("hello"), 20, {}), generate(*model, *byte_tokenizer(), context, o).texts[0].text);
  EXPECT_TRUE(has(message_of([&] { text.generate(ids("hello"), 59, {}); }), "a prompt of 6 tokens and 59 more"));
  MqarOptions mqar;
  mqar.length = 64, mqar.pairs = 4, mqar.vocab_size = 256;
  const MqarSequence sequence = mqar_sequence(mqar, 0);
  const std::vector<std::uint32_t> said = text.likeliest(sequence.tokens, sequence.places);
  ASSERT_EQ(said.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<std::uint32_t> until(sequence.tokens.begin(), sequence.tokens.begin() + sequence.places[i] + 1);
    std::vector<std::uint32_t> with = until;
    with.push_back(said[i]);
    EXPECT_TRUE(by_hand(model, with, 1).greedy) << i;
  }
  const TaskResult result = run_mqar(mqar, 3, text);  // of a model that has learned nothing
  EXPECT_LE(result.figures[0].value, 0.5);
}

}  // namespace
}  // namespace mhla
