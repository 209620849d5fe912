// Language models on a GPU, held to the CPU: one pass, gradients, packed documents, streaming, states in files, bf16.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "mhla/models/lm/decoder.h"
#include "mhla/models/lm/head_loss.h"
#include "mhla/models/lm/lm_fixture.h"
#include "mhla/ops/torch.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

class LanguageModelsOnAGpu : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    cpu_ = make_lm(small_lm(GetParam())), gpu_ = make_lm(small_lm(GetParam()));
    gpu_->to(torch::kCUDA);
  }

  static torch::Tensor cpu(const torch::Tensor& x) { return x.detach().to(torch::kCPU, torch::kFloat); }

  // Prompts of different lengths by themselves, then token by token together: the largest distance from `want`, the
  // logits of one pass.
  static double streamed(LanguageModel& model, const torch::Tensor& tokens, const torch::Tensor& want) {
    const std::int64_t lengths[] = {64, 7, 101};
    double worst = 0;
    std::vector<LmState> alone;
    for (std::int64_t b = 0; b < 3; ++b) {
      alone.push_back(model->begin());
      const torch::Tensor prompt = tokens.narrow(0, b, 1).narrow(1, 0, lengths[b]).to(model->device());
      const torch::Tensor logits = model->prefill(prompt, alone.back(), /*piece=*/b == 1 ? 2048 : 33);
      worst = std::max(worst, relative_distance(cpu(logits)[0], want[b][lengths[b] - 1]));
    }
    LmState state = join(std::move(alone));
    for (std::int64_t t = 0; t < 19; ++t) {
      std::vector<std::int64_t> next;
      for (std::int64_t b = 0; b < 3; ++b) next.push_back(tokens[b][lengths[b] + t].item<std::int64_t>());
      const torch::Tensor logits = cpu(model->decode(torch::tensor(next, torch::kLong).to(model->device()), state));
      for (std::int64_t b = 0; b < 3; ++b)
        worst = std::max(worst, relative_distance(logits[b], want[b][lengths[b] + t]));
    }
    return worst;
  }

  LanguageModel cpu_{nullptr}, gpu_{nullptr};
};

TEST_P(LanguageModelsOnAGpu, ComputeWhatTheCpuDoes) {
  const torch::Tensor tokens = tokens_of(2, 100);
  torch::Tensor losses[2];
  for (LanguageModel* model : {&cpu_, &gpu_}) {
    const torch::Tensor at = tokens.to((*model)->device());
    torch::Tensor& loss = losses[(*model)->device().is_cuda()];
    loss = torch::cross_entropy_loss((*model)->forward(at).flatten(0, 1), at.flatten());
    loss.backward();
  }
  EXPECT_LE(relative_distance(cpu(losses[1]), cpu(losses[0])), 1e-5);
  const auto want = cpu_->named_parameters();
  for (const auto& item : gpu_->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    EXPECT_LE(relative_distance(cpu(item.value().grad()), want[item.key()].grad()), 1e-3) << item.key();
  }
}

TEST_P(LanguageModelsOnAGpu, KeepPackedDocumentsApart) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor bounds = torch::tensor({0, 13, 13, 14, 60, 90}, torch::kLong), tokens = tokens_of(1, 90);
  const torch::Tensor want = cpu_->forward(tokens, bounds);
  EXPECT_LE(relative_distance(cpu(gpu_->forward(tokens.to(torch::kCUDA), bounds.to(torch::kCUDA))), want), 1e-4);
}

TEST_P(LanguageModelsOnAGpu, StreamWhatTheyComputeAtOnce) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor tokens = tokens_of(3, 120);
  const torch::Tensor once = cpu(gpu_->forward(tokens.to(torch::kCUDA)));
  EXPECT_LE(relative_distance(once, cpu_->forward(tokens)), 1e-4);
  EXPECT_LE(streamed(gpu_, tokens, once), 1e-5);
  // In bf16 every layer rounds, and a decode step divides by the norm of a row after the product instead of before it:
  // the logits of a step are as far from those of f32 as the logits of one pass are at worst, within a factor.
  gpu_->cast(torch::kBFloat16);
  const torch::Tensor rounded = cpu(gpu_->forward(tokens.to(torch::kCUDA)));
  double rounding = 0;
  for (std::int64_t b = 0; b < tokens.size(0); ++b)
    for (std::int64_t t = 0; t < tokens.size(1); ++t)
      rounding = std::max(rounding, relative_distance(rounded[b][t], once[b][t]));
  EXPECT_LE(rounding, 0.1);
  EXPECT_LE(streamed(gpu_, tokens, once), 1.5 * rounding);
}

// In bf16 a sequence of up to 64 has the bits it has alone, up to the last norm; the head is a product of PyTorch's.
TEST_P(LanguageModelsOnAGpu, DecodeASequenceAlikeInEveryBatch) {
  if (GetParam() != "mhla") GTEST_SKIP() << "mhla has kernels of its own for a few rows";
  const torch::NoGradGuard no_gradient;
  gpu_->cast(torch::kBFloat16);
  const torch::Tensor tokens = tokens_of(64, 19).to(torch::kCUDA);
  const auto hidden = [&](std::int64_t batch) {
    LmState state = gpu_->begin(batch);
    torch::Tensor last;
    for (std::int64_t t = 0; t < tokens.size(1); ++t)
      last = gpu_->stream(tokens.narrow(0, 0, batch).narrow(1, t, 1), state);
    return last;
  };
  const torch::Tensor all = hidden(64);
  for (const std::int64_t batch : {1, 2, 16, 17, 32, 33, 63})
    EXPECT_TRUE(torch::equal(hidden(batch), all.narrow(0, 0, batch))) << batch << " sequences";
}

// Chunks of 8 end on the way, sequences stand at different places, and one leaves.
TEST_P(LanguageModelsOnAGpu, DecodeFromARecordingAsWithoutOne) {
  for (const torch::ScalarType dtype : {torch::kFloat, torch::kBFloat16}) {
    if (dtype == torch::kBFloat16) gpu_->cast(dtype);
    const torch::Tensor tokens = tokens_of(3, 128).to(torch::kCUDA);
    std::vector<LmState> alone;
    for (const std::int64_t length : {64, 7, 97}) {
      alone.push_back(gpu_->begin());
      gpu_->prefill(tokens.narrow(0, 0, 1).narrow(1, 0, length), alone.back());
    }
    LmState state = join(std::move(alone)), want = select(state, {0, 1, 2});
    Decoder decoder(*gpu_);
    const bool records = GetParam() == "mhla" || GetParam() == "linear";
    torch::Tensor next = tokens.select(1, 0);
    for (int step = 0; step < 31; ++step) {
      if (step == 20) state = select(state, {2, 0}), want = select(want, {2, 0}), next = next.narrow(0, 0, 2);
      const torch::Tensor logits = decoder.decode(next, state);
      ASSERT_TRUE(torch::equal(logits, gpu_->decode(next, want))) << GetParam() << " step " << step;
      ASSERT_EQ(decoder.recorded(), records && step != 0 && step != 20) << GetParam() << " step " << step;
      next = logits.argmax(-1);
    }
    EXPECT_EQ(state.positions(), want.positions());
    if (GetParam() != "mhla") continue;
    EXPECT_TRUE(
        has(message_of([&] { decoder.decode(next, state); }), "pass the 128 that mix has rows for"));  // 97 + 31
    EXPECT_EQ(state.positions(), want.positions());
  }
}

TEST_P(LanguageModelsOnAGpu, StatesGoThroughFiles) {
  const torch::NoGradGuard no_gradient;
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / ("lm_cuda_" + GetParam());
  LmState state = gpu_->begin(2);
  gpu_->prefill(tokens_of(2, 77).to(torch::kCUDA), state);
  save_state(*gpu_, state, file);
  LmState loaded = load_state(*gpu_, file);
  std::filesystem::remove(file);
  const torch::Tensor next = tokens_of(2, 1).flatten().to(torch::kCUDA);
  EXPECT_TRUE(torch::equal(gpu_->decode(next, loaded), gpu_->decode(next, state)));
}

// As training does it: autocast, the loss in pieces of the vocabulary, with and without recomputation.
TEST_P(LanguageModelsOnAGpu, TrainInBf16) {
  // Calmer weights: with those of the other tests rounding them to bf16 alone turns the gradients of Gated DeltaNet
  // round.
  cpu_ = make_lm(small_lm(GetParam()), 2), gpu_ = make_lm(small_lm(GetParam()), 2);
  gpu_->to(torch::kCUDA);
  const torch::Tensor tokens = tokens_of(2, 101), at = tokens.to(torch::kCUDA);
  const auto loss_of = [](LanguageModel& model, const torch::Tensor& all) {
    const std::int64_t last = all.size(1) - 1;
    return head_loss(model->hidden(all.narrow(1, 0, last)), model->head(), all.narrow(1, 1, last));
  };
  loss_of(cpu_, tokens).backward();
  const auto want = cpu_->named_parameters();
  const auto off = [&](const std::string& name, const torch::Tensor& got) {
    const torch::Tensor& exact = want[name].grad();
    return ((got - exact).norm() / exact.norm()).item<double>();
  };
  // What bf16 may cost is what rounding the weights alone does to the gradients; a layer rounds a few times more.
  LanguageModel rounded = make_lm(small_lm(GetParam()), 2);
  rounded->cast(torch::kBFloat16), rounded->cast(torch::kFloat);
  loss_of(rounded, tokens).backward();
  double bound = 0;
  for (const auto& item : rounded->named_parameters()) {
    if (item.value().requires_grad()) bound = std::max(bound, 5 * off(item.key(), item.value().grad()));
  }
  std::vector<torch::Tensor> gradients[2];
  for (const bool again : {false, true}) {
    gpu_->zero_grad();
    gpu_->set_recompute(again);
    ops::set_autocast(at::kCUDA, true);
    const torch::Tensor loss = loss_of(gpu_, at);
    ops::set_autocast(at::kCUDA, false);
    at::autocast::clear_cache();
    loss.backward();
    for (const auto& item : gpu_->named_parameters()) {
      if (!item.value().requires_grad()) continue;
      gradients[again].push_back(cpu(item.value().grad()));
      EXPECT_LE(off(item.key(), gradients[again].back()), bound) << item.key();
    }
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_LE(relative_distance(gradients[1][i], gradients[0][i]), 1e-6) << "recomputed " << i;
}

// A named size: split any way it is one pass, to 1e-5 of the largest logit in f32, and 100 prompts go on greedily for
// 256 tokens as one pass over all of them says. Trained, so that it has something to say, it is one pass to a step of
// bf16 at the largest logit, too.
class ANamedLanguageModelOnAGpu : public testing::Test {
 protected:
  static constexpr std::int64_t kVocab = 1024;

  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    torch::manual_seed(1);
    LmConfig config = lm_config("mhla_30m");
    config.vocab = kVocab;
    model_ = LanguageModel(config);
    model_->to(torch::kCUDA);
  }

  // Every token has its successor, which comes nine times in ten.
  static torch::Tensor sentences(std::int64_t B, std::int64_t N) {
    torch::manual_seed(2);
    const torch::Tensor after = torch::randperm(kVocab), any = torch::randint(kVocab, {B, N}, torch::kLong);
    const torch::Tensor broken = torch::rand({B, N}) < 0.1;
    torch::Tensor all = any.clone();
    for (std::int64_t t = 1; t < N; ++t) {
      const torch::Tensor next = after.index_select(0, all.select(1, t - 1));
      all.select(1, t).copy_(torch::where(broken.select(1, t), any.select(1, t), next));
    }
    return all.to(torch::kCUDA);
  }

  void train(int steps) {
    torch::optim::AdamW optimizer(model_->parameters(), torch::optim::AdamWOptions(1e-3));
    const torch::Tensor text = sentences(8 * steps, 129);
    for (int step = 0; step < steps; ++step) {
      const torch::Tensor some = text.narrow(0, 8 * step, 8);
      optimizer.zero_grad();
      head_loss(model_->hidden(some.narrow(1, 0, 128)), model_->head(), some.narrow(1, 1, 128)).backward();
      optimizer.step();
    }
  }

  struct Split {
    double off = 0, largest = 0;  // the largest difference, the largest logit
  };
  Split worst_split(const torch::Tensor& tokens) {
    const torch::NoGradGuard no_gradient;
    const torch::Tensor want = model_->forward(tokens)[0].to(torch::kFloat);
    Split split;
    split.largest = want.abs().max().item<double>();
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{1}, {64}, {63, 1, 2, 127}, {300, 7}, {511, 189}}) {
      LmState state = model_->begin();
      std::size_t call = 0;
      for (std::int64_t begin = 0; begin < tokens.size(1);) {
        const std::int64_t count = std::min(lengths[std::min(call++, lengths.size() - 1)], tokens.size(1) - begin);
        const torch::Tensor logits = model_->prefill(tokens.narrow(1, begin, count), state);
        begin += count;
        split.off = std::max(split.off, (logits[0].to(torch::kFloat) - want[begin - 1]).abs().max().item<double>());
      }
    }
    return split;
  }

  LanguageModel model_{nullptr};
};

TEST_F(ANamedLanguageModelOnAGpu, AgreesWithItself) {
  const Split split = worst_split(sentences(1, 700));
  EXPECT_LE(split.off, 1e-5 * split.largest);
  train(60);
  const Split trained = worst_split(sentences(1, 700));
  EXPECT_LE(trained.off, 1e-5 * trained.largest);
  model_->cast(torch::kBFloat16);
  const Split half = worst_split(sentences(1, 700));
  EXPECT_GT(half.largest, 4.0) << "not trained";
  // Two roundings of the largest logit: one of the logits, one because a decode step divides by the norm of a row after
  // the product instead of before it.
  EXPECT_LE(half.off, 2 * std::exp2(std::floor(std::log2(half.largest)) - 7))
      << "at a largest logit of " << half.largest;
}

TEST_F(ANamedLanguageModelOnAGpu, GoesOnAsOnePassSays) {
  const torch::NoGradGuard no_gradient;
  const std::int64_t prompt = 40, more = 256;
  torch::Tensor all = tokens_of(100, prompt, kVocab).to(torch::kCUDA);
  LmState state = model_->begin(100);
  torch::Tensor next = model_->prefill(all, state).argmax(-1);
  for (std::int64_t t = 0; t < more; ++t) {
    all = torch::cat({all, next.unsqueeze(-1)}, 1);
    next = model_->decode(next, state).argmax(-1);
  }
  const torch::Tensor said = model_->forward(all.narrow(1, 0, prompt + more - 1)).argmax(-1);
  const torch::Tensor same = said.narrow(1, prompt - 1, more) == all.narrow(1, prompt, more);
  EXPECT_EQ((~same.all(1)).sum().item<std::int64_t>(), 0) << "prompts of 100 that go another way";
}

INSTANTIATE_TEST_SUITE_P(Every, LanguageModelsOnAGpu, testing::ValuesIn(kCausal),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace mhla
