// Language modelling as a task: text becomes tokens once, the model learns, a run that was stopped goes on with the
// same bits, and perplexity is that of plain code over every window.
#include "mhla/train/lm/lm_task.h"

#include <gtest/gtest.h>

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/data/token_set.h"
#include "mhla/io/file.h"
#include "mhla/testing/messages.h"
#include "mhla/train/batch_pass.h"
#include "mhla/train/lm/lm_eval.h"
#include "mhla/train/lm/lm_task_fixture.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

// Documents of 20 to 160 bytes, each one word again and again: easy to learn.
std::string write_corpus(const fs::path& folder) {
  fs::create_directories(folder);
  std::string lines;
  const char* words[] = {"abc ", "hello ", "linear ", "block "};
  for (int i = 0; i < 60; ++i) {
    std::string text;
    while (static_cast<int>(text.size()) < 20 + 37 * i % 140) text += words[i % 4];
    lines += R"({"text": ")" + text + "\"}\n";
  }
  const std::string path = (folder / "corpus.jsonl").string();
  write_file(path, lines);
  return path;
}

LmOptions small_lm_task(const fs::path& folder) {
  LmOptions o;
  o.model = "mhla_10m", o.data = write_corpus(folder), o.tokenizer = "bytes", o.valid = 0.2;
  o.network = parse_json(R"({"dim": 32, "layers": 2, "heads": 2, "mlp": 64, "context": 64, "chunk": 8})", "network");
  o.train.batch = 4, o.train.max_steps = 12, o.train.lr = 1e-2, o.train.min_lr = 1e-3, o.train.warmup_steps = 2;
  o.train.threads = 1, o.train.seed = 3, o.train.log_every = 1, o.train.checkpoint_every = 0;
  return o;
}

TEST(LmTask, LearnsAndSaysHowWell) {
  const TemporaryRun temporary;
  for (const char* packing : {"documents", "concatenate"}) {
    LmOptions options = small_lm_task(temporary.path("data"));
    options.packing = packing, options.train.max_steps = 60;
    Rows rows;
    const TrainResult result = train_lm(options, temporary.path(packing), rows);
    ASSERT_EQ(result.metrics.size(), 2u);
    EXPECT_EQ(result.metrics[1].first, "perplexity");
    EXPECT_LT(result.metrics[1].second, 4.0) << packing;  // of 257: words repeat
    double first = 0;
    for (const JsonValue& row : rows.rows) {
      if (row.at("kind").as_string() != "step") continue;
      if (first == 0) first = row.at("loss").as_double();
      EXPECT_NEAR(row.at("perplexity").as_double(), std::exp(row.at("loss").as_double()), 1e-6);
      EXPECT_GT(row.at("tokens_per_s").as_double(), 0.0);
      EXPECT_GT(row.at("mfu").as_double(), 0.0);
    }
    EXPECT_NEAR(first, std::log(257.0), 0.5) << packing;
    EXPECT_TRUE(fs::exists(temporary.path(packing) / "tokens" / "dataset.json"));
  }
}

TEST(LmTask, StoppedAndResumedIsTheUnbrokenRun) {
  const TemporaryRun temporary;
  for (const bool recompute : {false, true}) {
    LmOptions options = small_lm_task(temporary.path("data"));
    options.recompute = recompute;
    expect_resumes_to_the_same_bits(options, temporary);
  }
}

TEST(LmTask, GoesOnWithTheSameTokensAlone) {
  const TemporaryRun temporary;
  LmOptions options = small_lm_task(temporary.path("data"));
  options.tokens = temporary.path("tokens").string();
  StopAt stops;
  stops.step = 3;
  EXPECT_EQ(train_lm(options, temporary.path("run"), stops).stopped, "SIGTERM");
  fs::rename(options.tokens, temporary.path("moved"));
  LmOptions moved = options;
  moved.data = temporary.path("moved").string(), moved.tokens = "";
  stops.step = 6;
  EXPECT_EQ(train_lm(moved, temporary.path("run"), stops, /*resume=*/true).step, 6);
  write_file(options.data, R"({"text": "abd )" + std::string(4000, 'x') + "\"}\n");
  Rows rows;
  EXPECT_TRUE(has(message_of([&] { train_lm(options, temporary.path("run"), rows, /*resume=*/true); }),
                  "train: " + options.tokens + " has other tokens than the data of the run"));
  // One of before does not say.
  const LmDataPtr data = open_tokens(moved.data);
  const LmConfig network = network_of(moved, *data);
  LmTask task(resolved(moved, network), open_tokens(moved.data), network);
  EXPECT_EQ(task.cursor().at("tokens").as_int(), TokenSet::open(moved.data).checksum());
  EXPECT_NO_THROW(task.seek(parse_json(R"({"epoch": 0, "position": 0})", "cursor")));
}

TEST(LmTask, TakesTokensThatAreThere) {
  const TemporaryRun temporary;
  LmOptions options = small_lm_task(temporary.path("data"));
  options.tokens = temporary.path("tokens").string(), options.train.max_steps = 2;
  int told = 0;
  const auto tell = [&](const std::string&) { ++told; };
  EXPECT_EQ(token_folder(options, "run", tell), options.tokens);
  EXPECT_EQ(token_folder(options, "run", tell), options.tokens);
  EXPECT_EQ(told, 1);
  LmOptions other = options;
  other.data = temporary.path("other").string();
  fs::create_directories(other.data);
  write_file(temporary.path("other") / "a.txt", std::string("text"));
  EXPECT_TRUE(has(message_of([&] { token_folder(other, "run", tell); }), "has the tokens of"));
  other.data = temporary.path("data").string();  // the folder with that file alone
  EXPECT_EQ(token_folder(other, "run", tell), options.tokens);
  // A part to hold out that the tokens do not have.
  EXPECT_NO_THROW(expect_own_tokens(other, "run"));
  other.valid = 0.3;
  EXPECT_EQ(message_of([&] { expect_own_tokens(other, "run"); }),
            str("train: valid is 0.3, but ", options.tokens,
                " has tokens made with 0.2, expected none or that one, or another folder"));
  other.data = options.tokens, other.tokens = "";
  EXPECT_EQ(token_folder(other, "run", tell), options.tokens);
  // The vocabulary is that of the tokens, or more.
  const LmDataPtr data = open_tokens(options.tokens);
  EXPECT_EQ(network_of(options, *data).vocab, 257);
  options.network.set("vocab", 320);
  EXPECT_EQ(network_of(options, *data).vocab, 320);
  options.network.set("vocab", 200);
  EXPECT_EQ(message_of([&] { network_of(options, *data); }),
            "network: vocab is 200, expected at least the 257 of the tokens");
  options.network = parse_json("{}", "network"), options.context = 4096;
  EXPECT_EQ(network_of(options, *data).context, 4096);
  // The attention of a file, unless another is asked for.
  options.model = temporary.path("model.json").string();
  write_file(options.model, write_json(fields_to_json(lm_config("mhla_10m", "gla"))));
  EXPECT_EQ(network_of(options, *data).attention, "gla");
  EXPECT_EQ(resolved(options, network_of(options, *data)).attention, "gla");
  options.attention = "linear";
  EXPECT_EQ(network_of(options, *data).attention, "linear");
}

TEST(LmTask, OfficialTrainingIsWhatFlagsDoNotSay) {
  const auto train_of = [](bool official, std::optional<double> decay, std::optional<bool> apart) {
    LmOptions o;
    o.official = official, o.train.mix_weight_decay = decay, o.train.clip_mix_apart = apart;
    return resolved(o, lm_config(o.model, "mhla", official)).train;
  };
  EXPECT_EQ(train_of(false, {}, {}).mix_weight_decay, 0.0);
  EXPECT_EQ(train_of(false, {}, {}).clip_mix_apart, true);
  EXPECT_EQ(train_of(true, {}, {}).mix_weight_decay, LmOptions().train.weight_decay);
  EXPECT_EQ(train_of(true, {}, {}).clip_mix_apart, false);
  EXPECT_EQ(train_of(true, 0.0, true).mix_weight_decay, 0.0);
  EXPECT_EQ(train_of(true, 0.0, true).clip_mix_apart, true);
}

TEST(LmTask, PackedDocumentsAreNotRecorded) {
  const TemporaryRun temporary;
  LmOptions options = small_lm_task(temporary.path("data"));
  options.tokens = temporary.path("tokens").string(), options.train.cuda_graph = true;
  LmDataPtr data = open_data(options, "", [](const std::string&) {});
  const LmConfig network = network_of(options, *data);
  options = resolved(options, network);
  LmTask task(options, std::move(data), network);
  EXPECT_EQ(message_of([&] { BatchPass(task, options.train, torch::kCUDA); }),  // before anything is done there
            "train: cuda_graph is on, but packing is documents, whose lengths differ from batch to batch, expected "
            "concatenate");
}

TEST(LmTask, RefusesWhatDoesNotFit) {
  const auto said = [](const auto& change) {
    LmOptions options;
    change(options);
    return message_of([&] { check(options); });
  };
  EXPECT_EQ(said([](LmOptions& o) { o.packing = "loose"; }),
            "train: packing is 'loose', expected documents or concatenate");
  EXPECT_TRUE(has(said([](LmOptions& o) { o.attention = "mala"; }), "attention is 'mala', expected one of mhla"));
  EXPECT_TRUE(has(said([](LmOptions& o) { o.model = "gpt"; }), "model is 'gpt'"));
  EXPECT_TRUE(has(said([](LmOptions& o) { o.valid = 0.9; }), "valid is 0.9"));
  EXPECT_TRUE(has(said([](LmOptions& o) { o.train.lr = -1; }), "lr is -1"));
}

// ---- Perplexity

struct Held {
  TemporaryRun temporary;
  TokenSet set;
  LanguageModel model{nullptr};
  Held() : set(open()) {
    torch::manual_seed(5);
    LmConfig c = lm_config("mhla_10m");
    c.vocab = 257, c.dim = 32, c.layers = 2, c.heads = 2, c.mlp = 64, c.context = 32, c.chunk = 8;
    model = LanguageModel(c);
    const torch::NoGradGuard no_gradient;
    for (torch::Tensor& parameter : model->parameters()) {
      if (parameter.dim() == 2 && parameter.size(0) != parameter.size(1)) parameter.mul_(8);
    }
  }
  TokenSet open() {
    LmOptions o = small_lm_task(temporary.path("data"));
    o.tokens = temporary.path("tokens").string();
    return TokenSet::open(token_folder(o, "", [](const std::string&) {}), /*valid=*/true);
  }
};

TEST(Perplexity, IsThatOfPlainCode) {
  Held held;
  const torch::NoGradGuard no_gradient;
  const TokenSet& set = held.set;
  for (const bool documents : {true, false}) {
    for (const std::int64_t stride : {32, 10}) {
      double sum = 0, count = 0, late = 0, late_count = 0;
      const std::int64_t parts = documents ? set.documents() : 1;
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t first = documents ? set.document_begin(part) : 0,
                           end = documents ? set.document_begin(part + 1) : set.tokens();
        for (std::int64_t t = first; t < end; ++t) {  // token by token: the window that scores it
          const std::int64_t k = t - first < 32 ? 0 : (t - first - 32) / stride + 1;
          const std::int64_t begin = first + k * stride;
          std::vector<std::int64_t> tokens(static_cast<std::size_t>(t - begin + 1));
          set.copy(begin, t - begin + 1, tokens.data());
          std::int64_t target = documents ? 256 : -1;
          if (t + 1 < end) set.copy(t + 1, 1, &target);
          if (target < 0) continue;  // nothing follows the last token
          const torch::Tensor logits = held.model->forward(torch::tensor(tokens).unsqueeze(0))[0];
          const double loss = -logits[t - begin].log_softmax(-1)[target].item<double>();
          sum += loss, count += 1;
          if (t - begin >= 24) late += loss, late_count += 1;
        }
      }
      PerplexityOptions o;
      o.length = 32, o.stride = stride, o.documents = documents, o.batch = 3, o.bucket = 8;
      const Perplexity got = perplexity(*held.model, set, o);
      EXPECT_EQ(got.tokens, static_cast<std::int64_t>(count)) << documents << " " << stride;
      EXPECT_NEAR(got.loss, sum / count, 1e-4) << documents << " " << stride;
      EXPECT_EQ(got.buckets.back().first, 24);
      EXPECT_NEAR(got.buckets.back().loss, late / late_count, 1e-4) << documents << " " << stride;
      EXPECT_EQ(got.length, "fits: 32 tokens, 4 chunks of 8");
    }
  }
}

TEST(Perplexity, StatesWhatBecomesOfLongWindows) {
  Held held;
  PerplexityOptions o;
  o.length = 64, o.documents = false, o.tokens = 200;
  EXPECT_TRUE(has(message_of([&] { perplexity(*held.model, held.set, o); }), "mix has 4 rows"));
  held.model->set_length_policy(LengthPolicy::kExtend);
  const Perplexity extended = perplexity(*held.model, held.set, o);
  EXPECT_EQ(extended.length, "extend: tokens 0 to 63, 8 chunks of 8");
  EXPECT_EQ(extended.tokens, 256);  // whole windows
  held.model->set_length_policy(LengthPolicy::kTruncateLeft);
  const Perplexity cut = perplexity(*held.model, held.set, o);
  EXPECT_EQ(cut.tokens, 128);
  EXPECT_EQ(cut.buckets.front().first, 32);
  held.model->set_length_policy(LengthPolicy::kRechunk);
  EXPECT_EQ(perplexity(*held.model, held.set, o).length, "rechunk: tokens 0 to 63, 4 chunks of 16");
  o.stride = 65;
  EXPECT_EQ(message_of([&] { perplexity(*held.model, held.set, o); }),
            "eval: stride is 65, expected at most length = 64");
}

}  // namespace
}  // namespace mhla::train
