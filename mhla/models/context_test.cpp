// Models whose processes share every sample: results and gradients of one process. Processes are threads here.
#include <gtest/gtest.h>

#include <mutex>

#include "mhla/models/dit/dit.h"
#include "mhla/models/wan/wan.h"
#include "mhla/ops/context_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Gradients = std::vector<torch::Tensor>;

// `made`: a model with its weights drawn; `run`: its result for one batch. Gradients of all processes together, as a
// trainer that takes their mean has them, against those of one.
template <class Made, class Run>
void expect_what_one_computes(std::int64_t processes, const Made& made, const Run& run) {
  SCOPED_TRACE(str(processes, " processes"));
  std::mutex drawing;  // threads have one generator of random numbers
  const auto with = [&](const std::shared_ptr<ContextShare>& maybe_share, torch::Tensor& out) {
    const auto model = [&] {
      const std::lock_guard<std::mutex> alone(drawing);
      return made();
    }();
    if (maybe_share != nullptr) share_context(*model, maybe_share);
    model->train();
    const torch::Tensor y = run(*model);
    out = y.detach();
    (y * torch::linspace(-1, 1, y.numel()).view_as(y)).sum().backward();
    Gradients gradients;
    for (const torch::Tensor& parameter : model->parameters())
      if (parameter.requires_grad())
        gradients.push_back(parameter.grad().defined() ? parameter.grad() : torch::zeros_like(parameter));
    return gradients;
  };
  torch::Tensor want;
  const Gradients wanted = with(nullptr, want);
  std::vector<Gradients> got(static_cast<std::size_t>(processes));
  std::vector<torch::Tensor> out(got.size());
  ops::on_threads(processes, [&](ops::ContextGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto share = std::make_shared<ContextShare>();
    share->group = &group;
    got[rank] = with(share, out[rank]);
  });
  const auto expect_close = [](const torch::Tensor& a, const torch::Tensor& b, const std::string& name) {
    EXPECT_LE((a - b).norm().item<double>(), 2e-5 * (b.norm().item<double>() + 1e-3)) << name;
  };
  for (const torch::Tensor& all : out) expect_close(all, want, "out");
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    torch::Tensor sum = got[0][i];
    for (std::size_t rank = 1; rank < got.size(); ++rank) sum = sum + got[rank][i];
    expect_close(sum / static_cast<double>(processes), wanted[i], str("gradient ", i));
  }
}

void disturb(torch::nn::Module& model) {  // modulations and the last layer start with 0
  const torch::NoGradGuard no_gradient;
  torch::manual_seed(11);
  for (const auto& item : model.named_parameters())
    if (item.key().find(".mix") == std::string::npos) item.value().add_(torch::randn_like(item.value()), 0.1);
}

DitConfig context_dit() {
  DitConfig c = dit_config("dit_d32");
  c.image = {14, 8}, c.patch = 1, c.channels = 3, c.classes = 4, c.dim = 16, c.depth = 2, c.heads = 2;
  c.blocks = {4, 2}, c.lepe = 5, c.cpe = 3, c.gate = "silu";  // blocks of 4, 4, 4 and 2 rows
  return c;
}

TEST(SharedDit, ComputesWhatOneProcessComputes) {
  torch::manual_seed(5);
  const torch::Tensor x = torch::randn({2, 3, 14, 8}), t = torch::tensor({3, 800}), labels = torch::tensor({1, 4});
  for (const std::int64_t processes : {2, 3, 4}) {
    expect_what_one_computes(
        processes,
        [] {
          torch::manual_seed(7);
          Dit model(context_dit());
          disturb(*model);
          return model.ptr();
        },
        [&](DitImpl& model) { return model.forward(x, t, labels); });
  }
}

TEST(SharedWan, ComputesWhatOneProcessComputes) {
  torch::manual_seed(5);
  const torch::Tensor x = torch::randn({2, 4, 5, 8, 12}), t = torch::tensor({30.0, 800.0});
  const torch::Tensor text = torch::randn({2, 5, 6});
  for (const std::int64_t processes : {2, 3}) {
    expect_what_one_computes(
        processes,
        [] {
          torch::manual_seed(7);
          WanConfig c = wan_config("wan_d64");
          c.attention = "mhla", c.channels = c.out_channels = 4, c.dim = 24, c.depth = 2, c.heads = 2, c.mlp = 32;
          c.text_dim = 6, c.text_tokens = 5, c.time_channels = 8, c.vocab = 0, c.blocks = {3, 2, 3}, c.lepe = 3;
          Wan model(c);  // five frames in blocks of two
          disturb(*model);
          return model.ptr();
        },
        [&](WanImpl& model) { return model.forward(x, t, text); });
  }
}

TEST(SharedModels, RefuseWhatCannotBeCut) {
  const auto share = std::make_shared<ContextShare>();
  DitConfig c = context_dit();
  c.attention = "softmax", c.gate = "none", c.lepe = c.cpe = 0;
  Dit softmax(c);
  EXPECT_NE(message_of([&] { share_context(*softmax, share); }).find("cannot be shared between processes"),
            std::string::npos);
}

}  // namespace
}  // namespace mhla
