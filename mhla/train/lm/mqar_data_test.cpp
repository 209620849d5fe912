// Associative recall as what a language model learns from: it is learned, a run that was stopped goes on with the same
// bits, few tokens go through the head, and accuracy is that of plain code and of the task.
#include <gtest/gtest.h>

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/data/mqar_loader.h"
#include "mhla/models/lm/head_loss.h"
#include "mhla/testing/messages.h"
#include "mhla/train/lm/lm_batch.h"
#include "mhla/train/lm/lm_task_fixture.h"

namespace mhla::train {
namespace {

LmOptions small_mqar() {
  LmOptions o;
  o.model = "mhla_10m", o.data = "mqar", o.context = 32, o.mqar_pairs = 4, o.mqar_vocab = 32, o.mqar_items = 2000;
  o.network = parse_json(R"({"dim": 64, "layers": 2, "heads": 2, "mlp": 128, "context": 32, "chunk": 8})", "network");
  o.train.batch = 32, o.train.max_steps = 12, o.train.lr = 3e-3, o.train.warmup_steps = 5;
  o.train.threads = 1, o.train.seed = 3, o.train.log_every = 10, o.train.checkpoint_every = 0;
  o.eval_tokens = 128 * 32;
  return o;
}

TEST(MqarData, IsLearned) {
  const TemporaryRun temporary;
  LmOptions options = small_mqar();
  options.network.set("short_conv", 4);
  options.context = 16, options.mqar_vocab = 16, options.train.batch = 64;
  options.train.max_steps = 200, options.train.warmup_steps = 20, options.train.schedule = "constant";
  Rows rows;
  const TrainResult result = train_lm(options, temporary.path(), rows);
  ASSERT_EQ(result.metrics.size(), 2u);
  EXPECT_EQ(result.metrics[1].first, "accuracy");
  EXPECT_GT(result.metrics[1].second, 0.5);  // one of the sequence's four values at random: 0.25
  double first = 0;
  for (const JsonValue& row : rows.rows) {
    if (row.at("kind").as_string() != "step") continue;
    if (first == 0) first = row.at("loss").as_double();
    EXPECT_NEAR(row.at("tokens_per_s").as_double(), 4.0 * row.at("answers_per_s").as_double(), 1e-3);
    EXPECT_GT(row.at("mfu").as_double(), 0.0);
    EXPECT_LT(row.at("mfu").as_double(), 1.0);
    EXPECT_EQ(row.find("perplexity"), nullptr);
  }
  EXPECT_GT(first, std::log(8.0) - 0.5);
  EXPECT_LT(result.metrics[0].second, first / 2);
}

TEST(MqarData, StoppedAndResumedIsTheUnbrokenRun) {
  const TemporaryRun temporary;
  LmOptions options = small_mqar();
  options.train.log_every = 1, options.mqar_items = 160;  // an epoch of five batches
  expect_resumes_to_the_same_bits(options, temporary);
}

struct Judged {
  LmOptions options = small_mqar();
  LmDataPtr data = mqar_data(options);
  LanguageModel model{nullptr};
  Judged() {
    torch::manual_seed(5);
    model = LanguageModel(network_of(options, *data));
    const torch::NoGradGuard no_gradient;
    for (torch::Tensor& parameter : model->parameters()) {
      if (parameter.dim() == 2) parameter.mul_(4);
    }
  }
};

TEST(MqarData, EvaluationIsPlainCode) {
  Judged judged;
  judged.options.train.seed = 77;  // the same sequences for every run
  const torch::NoGradGuard no_gradient;
  double loss = 0, right = 0, count = 0;
  for (std::int64_t item = 0; item < 128; ++item) {
    const MqarSequence asked = mqar_sequence(mqar_options(judged.options, 32), item);
    const std::vector<std::int64_t> tokens(asked.tokens.begin(), asked.tokens.end());
    const torch::Tensor logits = judged.model->forward(torch::tensor(tokens).unsqueeze(0))[0];
    for (std::size_t i = 0; i < asked.places.size(); ++i) {
      const torch::Tensor row = logits[asked.places[i]].log_softmax(-1);
      const auto expected = static_cast<std::int64_t>(asked.expected[i]);
      loss -= row[expected].item<double>(), count += 1;
      right += row.argmax().item<std::int64_t>() == expected ? 1 : 0;
    }
  }
  EXPECT_EQ(count, 512);
  const Metrics got = judged.data->evaluate(*judged.model, judged.options);
  EXPECT_NEAR(got.at(0).second, loss / count, 1e-4);
  EXPECT_NEAR(got.at(1).second, right / count, 1.5 / count);  // but for a tie
  EXPECT_GT(right, 0.0);
}

TEST(LmBatch, FewTargetsAloneGoThroughTheHead) {
  Judged judged;
  TokenBatch batch;
  judged.data->batches(judged.options, Cursor{})->next(batch);
  const LmBatch few = batch_on(torch::kCPU, batch);
  EXPECT_EQ(few.known, 32 * 4);
  ASSERT_TRUE(few.maybe_places.defined());
  EXPECT_EQ(few.targets.sizes(), torch::IntArrayRef({32 * 4}));
  const auto gradient = [&](const LmBatch& of) {
    judged.model->zero_grad();
    const torch::Tensor loss = head_loss(of.asked(judged.model->hidden(of.tokens)), judged.model->head(), of.targets);
    loss.backward();
    return std::pair{loss.item<double>(), judged.model->head().grad().clone()};
  };
  LmBatch all = few;
  all.maybe_places = torch::Tensor(), all.targets = torch::tensor(batch.targets).view({32, 32});
  const auto [loss, grad] = gradient(few);
  const auto [plain_loss, plain_grad] = gradient(all);
  EXPECT_NEAR(loss, plain_loss, 1e-5 * plain_loss);
  EXPECT_LT((grad - plain_grad).abs().max().item<double>(), 1e-4 * plain_grad.abs().max().item<double>());
  // Where most tokens have a target, all of them go.
  std::fill(batch.targets.begin(), batch.targets.begin() + 16 * 32, 3);
  const LmBatch most = batch_on(torch::kCPU, batch);
  EXPECT_FALSE(most.maybe_places.defined());
  EXPECT_EQ(most.targets.sizes(), torch::IntArrayRef({32, 32}));
  batch.tokens[0] += 1;  // the tensors are copies
  EXPECT_NE(most.tokens[0][0].item<std::int64_t>(), batch.tokens[0]);
}

TEST(MqarData, MistakesAreNamed) {
  const auto said = [](const auto& change) {
    LmOptions options = small_mqar();
    change(options);
    return message_of([&] {
      check(options);
      (void)network_of(options, *mqar_data(options));
    });
  };
  EXPECT_EQ(said([](LmOptions& o) { o.mqar_pairs = 9; }), "mqar: length is 32, expected at least 36 for 9 pairs");
  EXPECT_EQ(said([](LmOptions& o) { o.mqar_vocab = 33; }),
            "mqar: vocab_size is 33, expected an even number: half of the ids are keys, half values");
  EXPECT_EQ(said([](LmOptions& o) { o.network.set("vocab", 16); }),
            "network: vocab is 16, expected at least the 32 of mqar");
  EXPECT_EQ(said([](LmOptions& o) { o.mqar_items = 31; }),
            "train: mqar_items is 31, expected at least the batch of 32");
  EXPECT_EQ(said([](LmOptions& o) { o.tokenizer = "bytes"; }),
            "train: tokenizer is 'bytes', expected none: data mqar is no text");
  EXPECT_EQ(said([](LmOptions& o) { o.context = 0, o.mqar_pairs = 8; }), "nothing was thrown");  // the model's 32
}

}  // namespace
}  // namespace mhla::train
