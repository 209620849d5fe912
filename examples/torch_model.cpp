// In a LibTorch program: mhla::MhlaAttention instead of softmax attention in a network of one's own, trained for a
// few steps; then a whole classifier by name, saved to a folder and loaded from it. A folder of `mhla train classify`
// or `mhla convert` is loaded the same way: torch_model FOLDER prints what it says about noise.
#include <cstdio>
#include <filesystem>

#include "mhla/models/classify/classifier.h"
#include "mhla/modules/mhla_attention.h"

namespace {

// An 8 x 8 image of tokens in 2 x 2 blocks.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : attention(register_module("attention", mhla::MhlaAttention(mhla::MhlaAttentionOptions::image(
                                                   /*dim=*/32, /*heads=*/4, mhla::Layout::grid2d(8, 8, 2, 2))))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})))),
        head(register_module("head", torch::nn::Linear(32, 4))) {}
  torch::Tensor forward(const torch::Tensor& x /* [B, 64, 32] */) {
    return head((x + attention->forward(norm(x))).mean(1));
  }
  mhla::MhlaAttention attention;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Block);

void train_a_block() {
  Block block;
  const torch::Tensor x = torch::randn({16, 64, 32}), labels = torch::arange(16) % 4;
  torch::optim::AdamW optimizer(block->parameters(), torch::optim::AdamWOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 40; ++step) {
    const torch::Tensor loss = torch::cross_entropy_loss(block(x), labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    block->attention->constrain();  // the range of the mixing matrix
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  if (!(last < 0.5 * first)) mhla::fail("torch_model: the loss went from ", first, " to ", last, " only");
  std::printf("a block with MHLA: loss %.3f to %.3f in 40 steps\n", first, last);
}

torch::Tensor probabilities(mhla::Classifier& model) {
  const mhla::ClassifierConfig& c = model.config();
  const torch::NoGradGuard no_gradient;
  model.eval();
  return model.forward(torch::randn({2, c.channels, c.image[0], c.image[1]})).softmax(-1);  // [2, classes]
}

}  // namespace

int main(int argc, char** argv) try {
  torch::manual_seed(1);
  if (argc > 1) {
    const mhla::AnyClassifier model = mhla::load_classifier(argv[1]);
    const auto [best, which] = probabilities(*model)[0].max(0);
    std::printf("%s: class %lld with %.1f %%\n", argv[1], static_cast<long long>(which.item<std::int64_t>()),
                100 * best.item<double>());
    return 0;
  }
  train_a_block();

  mhla::ClassifierConfig config = mhla::classifier_config("vit_demo", "mhla");  // or any attention of the zoo
  config.classes = 4;
  const mhla::AnyClassifier model = mhla::make_classifier(config);
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "mhla_torch_model";
  mhla::save_classifier(*model, folder);  // model.safetensors, config.json
  const mhla::AnyClassifier again = mhla::load_classifier(folder);
  std::filesystem::remove_all(folder);
  torch::manual_seed(2);
  const torch::Tensor want = probabilities(*model);
  torch::manual_seed(2);
  if (!torch::equal(probabilities(*again), want)) mhla::fail("torch_model: the loaded model says something else");
  std::printf("a classifier of %s, saved and loaded: %lld classes\n", config.model.c_str(),
              static_cast<long long>(want.size(1)));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
