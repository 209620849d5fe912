// Video models on a GPU against the CPU: values and gradients in f32, values with weights in bf16.
#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/models/wan/wan.h"

namespace mhla {
namespace {

double norm_distance(const torch::Tensor& got, const torch::Tensor& want) {
  const torch::Tensor wide = want.to(torch::kDouble);
  return ((got.to(torch::kCPU, torch::kDouble) - wide).norm() / wide.norm()).item<double>();
}

// As large as groups of threads make a difference: 1,152 columns are more than the short norm takes.
WanConfig network(const std::string& attention, const std::string& gate) {
  WanConfig c = wan_config("wan_d64", attention);
  c.dim = 1152, c.heads = 9, c.depth = 3, c.mlp = 256, c.vocab = 0, c.text_dim = 24, c.blocks = {2, 2, 2};
  if (attention != "softmax") c.gate = gate, c.lepe = gate == "silu" ? 3 : 0, c.layers = {0, 2};
  check(c);
  return c;
}

void shake(torch::nn::Module& model) {
  const torch::NoGradGuard no_gradient;
  for (const auto& item : model.named_parameters())
    if (!item.key().ends_with("mix")) item.value().add_(torch::randn_like(item.value()), 0.02);
}

struct Answers {
  torch::Tensor out;
  std::vector<torch::Tensor> gradients;
};

Answers answers_of(Wan& model, const torch::Tensor& x, const torch::Tensor& text, const torch::Device& device) {
  model->to(device);
  const torch::Tensor t = torch::tensor({300.0F, 700.0F}).to(device);
  const torch::Tensor out = model->forward(x.to(device), t, text.to(device));
  for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad() = torch::Tensor();
  out.square().mean().backward();
  Answers all{out.detach().cpu(), {}};
  for (const torch::Tensor& parameter : model->parameters())
    all.gradients.push_back(parameter.grad().defined() ? parameter.grad().cpu() : torch::Tensor());
  return all;
}

TEST(VideoCuda, WanInF32WithItsGradients) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  torch::manual_seed(1);
  for (const auto& [attention, gate] : {std::pair("mhla", "none"), std::pair("mhla", "silu"),
                                        std::pair("linear", "none"), std::pair("softmax", "none")}) {
    SCOPED_TRACE(str(attention, " ", gate));
    Wan model(network(attention, gate));
    shake(*model);
    const torch::Tensor x = torch::randn({2, 12, 4, 8, 12}), text = torch::randn({2, 5, 24});
    const Answers want = answers_of(model, x, text, torch::kCPU), got = answers_of(model, x, text, torch::kCUDA);
    EXPECT_LT(norm_distance(got.out, want.out), 1e-4);
    for (std::size_t i = 0; i < want.gradients.size(); ++i) {
      const std::string name = model->named_parameters().keys()[i];
      ASSERT_EQ(got.gradients[i].defined(), want.gradients[i].defined()) << name;
      if (!want.gradients[i].defined() || want.gradients[i].abs().max().item<float>() <= 1e-8F) continue;
      EXPECT_LT(norm_distance(got.gradients[i], want.gradients[i]), 2e-3) << name;
    }
    const torch::NoGradGuard no_gradient;  // other kernels: norm and rotary positions in one pass
    const torch::Tensor t = torch::tensor({300.0F, 700.0F}).to(torch::kCUDA);
    EXPECT_LT(norm_distance(model->forward(x.to(torch::kCUDA), t, text.to(torch::kCUDA)), want.out), 1e-4);
  }
}

// What bf16 costs is judged by what it costs on the CPU.
TEST(VideoCuda, WanWithWeightsInBf16) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  torch::manual_seed(2);
  const torch::NoGradGuard no_gradient;
  for (const char* attention : {"mhla", "linear", "softmax"}) {
    SCOPED_TRACE(attention);
    Wan model(network(attention, "none"));
    shake(*model);
    const torch::Tensor x = torch::randn({2, 12, 4, 8, 12}), text = torch::randn({2, 5, 24}),
                        t = torch::tensor({300.0F, 700.0F});
    const torch::Tensor want = model->forward(x, t, text);
    model->to(torch::kBFloat16);
    const double lost = norm_distance(model->forward(x, t, text), want);
    model->to(torch::kCUDA);
    const torch::Tensor got = model->forward(x.to(torch::kCUDA), t.to(torch::kCUDA), text.to(torch::kCUDA));
    EXPECT_LE(norm_distance(got, want), std::max(2e-2, 2 * lost));
  }
}

TEST(VideoCuda, TheAutoencoderHoweverFramesLie) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  torch::manual_seed(3);
  const torch::NoGradGuard no_gradient;
  WanVaeConfig c;
  c.base_dim = 12, c.z_dim = 2, c.latents_mean = {0.1, -0.2}, c.latents_std = {1.5, 0.5};
  WanVae model(c);
  const torch::Tensor z = torch::randn({1, 2, 3, 4, 6}), video = torch::rand({1, 3, 9, 16, 24}) * 2 - 1;
  const torch::Tensor frames = model->decode(z), latents = model->encode(video);
  for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
    model->to(torch::kCUDA, type);
    for (const WanVaeFrames how : {WanVaeFrames::kPlain, WanVaeFrames::kRows, WanVaeFrames::kImages}) {
      SCOPED_TRACE(str(c10::toString(type), " ", static_cast<int>(how)));
      model->use_frames(how);
      const double most = type == torch::kFloat ? 4e-3 : 5e-2;  // convolutions round to TF32 on a card: 2.04e-3 seen
      EXPECT_LT(norm_distance(model->decode(z.to(torch::kCUDA, type)), frames), most);
      EXPECT_LT(norm_distance(model->encode(video.to(torch::kCUDA, type)), latents), most);
    }
  }
}

}  // namespace
}  // namespace mhla
