// Language models on a GPU, held to the CPU: one pass, gradients, packed documents, streaming, states in files, bf16.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "mhla/models/lm/head_loss.h"
#include "mhla/models/lm/lm_fixture.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

class LanguageModelsOnAGpu : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    cpu_ = make(small(GetParam())), gpu_ = make(small(GetParam()));
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
      worst = std::max(worst, distance(cpu(logits)[0], want[b][lengths[b] - 1]));
    }
    LmState state = join(std::move(alone));
    for (std::int64_t t = 0; t < 19; ++t) {
      std::vector<std::int64_t> next;
      for (std::int64_t b = 0; b < 3; ++b) next.push_back(tokens[b][lengths[b] + t].item<std::int64_t>());
      const torch::Tensor logits = cpu(model->decode(torch::tensor(next, torch::kLong).to(model->device()), state));
      for (std::int64_t b = 0; b < 3; ++b) worst = std::max(worst, distance(logits[b], want[b][lengths[b] + t]));
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
  EXPECT_LE(distance(cpu(losses[1]), cpu(losses[0])), 1e-5);
  const auto want = cpu_->named_parameters();
  for (const auto& item : gpu_->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    EXPECT_LE(distance(cpu(item.value().grad()), want[item.key()].grad()), 1e-3) << item.key();
  }
}

TEST_P(LanguageModelsOnAGpu, KeepPackedDocumentsApart) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor bounds = torch::tensor({0, 13, 13, 14, 60, 90}, torch::kLong), tokens = tokens_of(1, 90);
  const torch::Tensor want = cpu_->forward(tokens, bounds);
  EXPECT_LE(distance(cpu(gpu_->forward(tokens.to(torch::kCUDA), bounds.to(torch::kCUDA))), want), 1e-4);
}

TEST_P(LanguageModelsOnAGpu, StreamWhatTheyComputeAtOnce) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor tokens = tokens_of(3, 120);
  const torch::Tensor once = cpu(gpu_->forward(tokens.to(torch::kCUDA)));
  EXPECT_LE(distance(once, cpu_->forward(tokens)), 1e-4);
  EXPECT_LE(streamed(gpu_, tokens, once), 1e-5);
  // In bf16 every layer rounds; two ways to the same sum differ by a rounding in some of them.
  gpu_->cast(torch::kBFloat16);
  EXPECT_LE(streamed(gpu_, tokens, cpu(gpu_->forward(tokens.to(torch::kCUDA)))), 0.03);
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
  cpu_ = make(small(GetParam()), 2), gpu_ = make(small(GetParam()), 2);
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
  LanguageModel rounded = make(small(GetParam()), 2);
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
    ops::set_cuda_autocast(true);
    const torch::Tensor loss = loss_of(gpu_, at);
    ops::set_cuda_autocast(false);
    at::autocast::clear_cache();
    loss.backward();
    for (const auto& item : gpu_->named_parameters()) {
      if (!item.value().requires_grad()) continue;
      gradients[again].push_back(cpu(item.value().grad()));
      EXPECT_LE(off(item.key(), gradients[again].back()), bound) << item.key();
    }
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    EXPECT_LE(distance(gradients[1][i], gradients[0][i]), 1e-6) << "recomputed " << i;
}

// A named size with the weights it starts with: any split is one pass, to 1e-5 of the largest logit in f32 and to one
// step of bf16 there; and 100 prompts go on greedily for 256 tokens as one pass over all of them says.
TEST(ANamedLanguageModelOnAGpu, AgreesWithItself) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(1);
  LmConfig config = lm_config("mhla_30m");
  config.vocab = 8192;
  LanguageModel model(config);
  model->to(torch::kCUDA);
  const torch::Tensor tokens = tokens_of(1, 700, config.vocab).to(torch::kCUDA);
  const auto worst_split = [&] {
    const torch::Tensor want = model->forward(tokens)[0].to(torch::kFloat);
    const double largest = want.abs().max().item<double>();
    double worst = 0;
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{1}, {64}, {63, 1, 2, 127}, {300, 7}, {511, 189}}) {
      LmState state = model->begin();
      std::size_t call = 0;
      for (std::int64_t begin = 0; begin < tokens.size(1);) {
        const std::int64_t count = std::min(lengths[std::min(call++, lengths.size() - 1)], tokens.size(1) - begin);
        const torch::Tensor logits = model->prefill(tokens.narrow(1, begin, count), state);
        begin += count;
        const double off = (logits[0].to(torch::kFloat) - want[begin - 1]).abs().max().item<double>();
        worst = std::max(worst, off / largest);
      }
    }
    return worst;
  };
  EXPECT_LE(worst_split(), 1e-5);

  const std::int64_t prompt = 40, more = 256;
  torch::Tensor all = tokens_of(100, prompt, config.vocab).to(torch::kCUDA);
  LmState state = model->begin(100);
  torch::Tensor next = model->prefill(all, state).argmax(-1);
  for (std::int64_t t = 0; t < more; ++t) {
    all = torch::cat({all, next.unsqueeze(-1)}, 1);
    next = model->decode(next, state).argmax(-1);
  }
  const torch::Tensor said = model->forward(all.narrow(1, 0, prompt + more - 1)).argmax(-1);
  const torch::Tensor same = said.narrow(1, prompt - 1, more) == all.narrow(1, prompt, more);
  EXPECT_EQ((~same.all(1)).sum().item<std::int64_t>(), 0) << "prompts of 100 that go another way";

  model->cast(torch::kBFloat16);
  const double half = worst_split();
  std::printf("bf16: splits differ by %.5f of the largest logit\n", half);
  EXPECT_LE(half, 0x1p-7);
}

INSTANTIATE_TEST_SUITE_P(Every, LanguageModelsOnAGpu, testing::ValuesIn(kCausal),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace mhla
