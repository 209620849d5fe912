// A stranger's LibTorch model with mhla::MhlaAttention in it, and models by name: a few steps lower a loss.
#include <torch_headers.h>  // every installed header over LibTorch

#include <cstdio>

struct NetImpl : torch::nn::Module {
  NetImpl()
      : attention(register_module("attention", mhla::MhlaAttention(mhla::MhlaAttentionOptions::image(
                                                   32, 2, mhla::Layout::grid2d(4, 4, 2, 2))))),
        head(register_module("head", torch::nn::Linear(32, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(attention->forward(x).mean(1)); }
  mhla::MhlaAttention attention;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

int main() try {
  torch::manual_seed(1);
  Net net;
  const torch::Tensor x = torch::randn({6, 16, 32}), labels = torch::tensor({0, 1, 2, 0, 1, 2});
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  double first = 0.0, last = 0.0;
  for (int step = 0; step < 20; ++step) {
    const torch::Tensor loss = torch::cross_entropy_loss(net(x), labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    net->attention->constrain();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  if (!(last < 0.5 * first)) mhla::fail("consumer_torch: the loss went from ", first, " to ", last);
  const mhla::AnyClassifier model = mhla::make_classifier(mhla::classifier_config("vit_demo", "gla"));
  const torch::Tensor logits = model->forward(torch::zeros({1, 1, 28, 28}));
  mhla::LmConfig config = mhla::lm_config("mhla_10m");
  config.layers = 1;
  mhla::LanguageModel language(config);
  mhla::LmState state = language->begin();
  if (language->prefill(torch::zeros({1, 3}, torch::kLong), state).size(1) != config.vocab) return 1;
  std::printf("consumer_torch: loss %.3f to %.3f, %lld classes\n", first, last, static_cast<long long>(logits.size(1)));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
