// A network as a CUDA graph against the network itself: the same bits, whatever the inputs; other shapes go kernel by
// kernel. Without a GPU the network is called as it is.
#include "mhla/diffusion/graph_denoiser.h"

#include <gtest/gtest.h>

#include "mhla/models/dit/dit_fixture.h"
#include "mhla/models/sana/sana.h"
#include "mhla/models/wan/wan.h"

namespace mhla {
namespace {

Dit small_dit(const std::string& attention) {
  DitConfig c = dit_config("dit_d32", attention);
  c.image = {16, 16}, c.classes = 5, c.dim = 64, c.heads = 1, c.depth = 2, c.blocks = {2, 2};
  Dit model(c);
  randomize(*model);
  return model;
}

struct Inputs {
  torch::Tensor x, t;
  Conditioning condition;
};

Inputs dit_inputs(std::int64_t B, torch::Device device) {
  return {torch::randn({B, 3, 16, 16}).to(device),
          (torch::rand({B}) * 999).to(device),
          {torch::randint(5, {B}, torch::kLong).to(device), {}, {}}};
}

Inputs sana_inputs(std::int64_t B, torch::Device device) {
  return {torch::randn({B, 4, 16, 16}).to(device),
          (torch::rand({B}) * 999).to(device),
          {{}, torch::randn({B, 12, 48}).to(device), torch::ones({B, 12}, torch::kLong).to(device)}};
}

Inputs wan_inputs(std::int64_t B, torch::Device device) {
  return {torch::randn({B, 12, 4, 8, 8}).to(device),
          (torch::rand({B}) * 999).to(device),
          {{}, torch::randn({B, 5, 24}).to(device), {}}};
}

template <class Make>
void expect_same_bits(Denoiser& model, const Make& inputs) {
  const torch::NoGradGuard no_gradient;
  GraphDenoiser graph(model);
  for (int call = 0; call < 6; ++call) {
    const Inputs in = inputs(call == 4 ? 3 : 2, torch::kCUDA);
    const torch::Tensor want = model.denoise(in.x, in.t, in.condition);
    EXPECT_TRUE(torch::equal(graph.denoise(in.x, in.t, in.condition), want)) << "call " << call;
    EXPECT_EQ(graph.replayed(), call >= 2 && call != 4) << "call " << call;
  }
}

TEST(GraphDenoiser, HasTheBitsOfTheNetwork) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  torch::manual_seed(2);
  for (const char* attention : {"mhla", "linear", "softmax"}) {
    SCOPED_TRACE(attention);
    for (const torch::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
      Dit dit = small_dit(attention);
      dit->to(torch::kCUDA, type);
      expect_same_bits(*dit, dit_inputs);
      SanaConfig c = sana_config("sana_600m", attention);
      c.channels = 4, c.dim = 64, c.depth = 2, c.head_dim = 32, c.cross_heads = 2, c.caption_dim = 48;
      c.caption_tokens = 12;
      Sana sana(c);
      randomize(*sana);
      sana->to(torch::kCUDA, type);
      expect_same_bits(*sana, sana_inputs);
      WanConfig w = wan_config("wan_d64", attention);
      w.depth = 2, w.vocab = 0, w.text_dim = 24, w.blocks = {2, 2, 2};
      Wan wan(w);
      randomize(*wan);
      wan->to(torch::kCUDA, type);
      expect_same_bits(*wan, wan_inputs);
    }
  }
}

TEST(GraphDenoiser, CallsTheNetworkOnACpu) {
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(2);
  Dit dit = small_dit("mhla");
  GraphDenoiser graph(*dit);
  for (int call = 0; call < 4; ++call) {
    const Inputs in = dit_inputs(2, torch::kCPU);
    EXPECT_TRUE(torch::equal(graph.denoise(in.x, in.t, in.condition), dit->denoise(in.x, in.t, in.condition)));
    EXPECT_FALSE(graph.replayed());
  }
  const Inputs in = dit_inputs(1, torch::kCPU);
  EXPECT_EQ(graph.unconditional(in.condition).labels.item<std::int64_t>(), 5);
}

TEST(GraphDenoiser, ScansAreNotRecorded) {
  EXPECT_TRUE(small_dit("mhla")->can_be_recorded());
  EXPECT_FALSE(small_dit("gla")->can_be_recorded());
}

}  // namespace
}  // namespace mhla
