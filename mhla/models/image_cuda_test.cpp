// Image generators on a GPU, compared with the CPU: DiT with every attention, DiG, SANA, SD VAE and DC-AE. Output and
// all gradients in f32, the output in bf16. Sizes are those of small models with heads of real width, so that bf16 runs
// the kernels that real models run.
#include <gtest/gtest.h>

#include "mhla/models/autoencoder/autoencoder.h"
#include "mhla/models/dit/dit_fixture.h"
#include "mhla/models/sana/sana.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

using Inputs = std::vector<torch::Tensor>;

struct ImageCase {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  Inputs inputs;  // f32 ones are cast to the type of the weights
  std::function<torch::Tensor(torch::nn::Module&, const Inputs&)> run;
  double gradients = 1e-3, bf16 = 0.05;
};

std::ostream& operator<<(std::ostream& out, const ImageCase& one) { return out << one.name; }

// Weights that are 0 nowhere; the mixing matrices stay as they begin.
std::shared_ptr<torch::nn::Module> shaken(std::shared_ptr<torch::nn::Module> model) {
  randomize(*model);
  return model;
}

ImageCase dit_case(const std::string& attention, const std::string& variant, const std::string& model = "dit_d32") {
  DitConfig c = dit_config(model, attention);
  c.image = {32, 32}, c.channels = 3, c.classes = 5, c.dim = 128, c.heads = 2, c.blocks = {4, 4};
  c.depth = attention.rfind("mamba", 0) == 0 ? 8 : 2;  // mamba has no MLP: fewer layers do not have as many weights
  if (!variant.empty()) c = with_variant(c, variant);
  torch::manual_seed(5);
  return {model + "_" + attention + variant,
          [c] { return shaken(Dit(c).ptr()); },
          {torch::randn({2, 3, 32, 32}), torch::tensor({20.0F, 900.0F}), torch::tensor({1, 5}, torch::kLong)},
          [](torch::nn::Module& m, const Inputs& in) {
            return dynamic_cast<DitImpl&>(m).forward(in[0], in[1].to(torch::kFloat), in[2]);
          }};
}

ImageCase sana_case(const std::string& attention) {
  SanaConfig c = sana_config("sana_600m", attention);
  c.channels = 4, c.dim = 128, c.depth = 2, c.head_dim = 32, c.cross_heads = 2, c.caption_dim = 48;
  c.caption_tokens = 12;
  torch::manual_seed(6);
  torch::Tensor mask = torch::ones({2, 12}, torch::kLong);
  mask.narrow(0, 1, 1).narrow(1, 5, 7).zero_();
  return {"sana_" + attention,
          [c] { return shaken(Sana(c).ptr()); },
          {torch::randn({2, 4, 16, 16}), torch::tensor({20.0F, 900.0F}), torch::randn({2, 12, 48}), mask},
          [](torch::nn::Module& m, const Inputs& in) {
            return dynamic_cast<SanaImpl&>(m).forward(in[0], in[1].to(torch::kFloat), in[2], in[3]);
          }};
}

ImageCase autoencoder_case(const std::string& name, const AutoencoderConfig& config) {
  torch::manual_seed(7);
  return {name,
          [config]() -> std::shared_ptr<torch::nn::Module> { return make_autoencoder(config); },
          {torch::rand({2, 3, 64, 96}) * 2 - 1},
          [](torch::nn::Module& m, const Inputs& in) {
            auto& model = dynamic_cast<Autoencoder&>(m);
            return model.decode(model.encode(in[0]));
          }};
}

std::vector<ImageCase> image_cases() {
  std::vector<ImageCase> cases;
  for (const std::string_view attention : attention_names()) cases.push_back(dit_case(std::string(attention), ""));
  for (const char* variant : {"cpe", "gate", "both"}) cases.push_back(dit_case("mhla", variant));
  cases.push_back(dit_case("gla", "", "dig_s_2"));
  for (const char* attention : {"linear", "mhla", "softmax"}) cases.push_back(sana_case(attention));
  KlConfig kl;
  kl.block_out_channels = {32, 64, 64}, kl.layers_per_block = 1, kl.norm_num_groups = 8;
  cases.push_back(autoencoder_case("sd_vae", kl));
  DcConfig dc;
  dc.latent_channels = 4, dc.attention_head_dim = 8;
  dc.encoder_block_types = dc.decoder_block_types = {"ResBlock", "EfficientViTBlock", "EfficientViTBlock"};
  dc.encoder_block_out_channels = dc.decoder_block_out_channels = {16, 16, 32};
  dc.encoder_layers_per_block = {1, 1, 1}, dc.decoder_layers_per_block = {1, 1, 1};
  dc.encoder_qkv_multiscales = dc.decoder_qkv_multiscales = {{}, {5}, {5}};
  cases.push_back(autoencoder_case("dc_ae", dc));
  return cases;
}

class ImageModelsOnAGpu : public testing::TestWithParam<ImageCase> {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
    at::globalContext().setAllowTF32CuDNN(false);
    for (std::shared_ptr<torch::nn::Module>* model : {&cpu_, &gpu_}) {
      torch::manual_seed(1);
      *model = GetParam().make();
      (*model)->eval();
    }
    gpu_->to(torch::kCUDA);
  }
  // The output on the CPU in f32, of a model on its own device in the type of its weights.
  static torch::Tensor run(torch::nn::Module& model) {
    const torch::Tensor some = model.parameters().front();
    Inputs inputs;
    for (const torch::Tensor& x : GetParam().inputs)
      inputs.push_back(x.to(some.device()).to(x.is_floating_point() ? some.scalar_type() : x.scalar_type()));
    return GetParam().run(model, inputs).to(torch::kCPU, torch::kFloat);
  }

  std::shared_ptr<torch::nn::Module> cpu_, gpu_;
};

TEST_P(ImageModelsOnAGpu, ComputeWhatTheCpuDoes) {
  torch::Tensor out[2];
  for (torch::nn::Module* model : {cpu_.get(), gpu_.get()}) {
    torch::Tensor& mine = out[model == gpu_.get() ? 1 : 0];
    mine = run(*model);
    torch::manual_seed(9);
    (mine * torch::randn(mine.sizes())).mean().backward();
  }
  EXPECT_LE(distance(out[1].detach(), out[0].detach()), 1e-4);
  const auto want = cpu_->named_parameters();
  for (const auto& item : gpu_->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const torch::Tensor& mine = item.value().grad();
    const torch::Tensor& theirs = want[item.key()].grad();
    ASSERT_EQ(mine.defined(), theirs.defined()) << item.key();
    if (!mine.defined()) continue;
    const double scale = std::max(theirs.abs().max().item<double>(), 1e-6);
    EXPECT_LE((mine.cpu() - theirs).abs().max().item<double>() / scale, GetParam().gradients) << item.key();
  }
}

// Some of these networks lose more in bf16 than others: at most twice what the CPU loses.
TEST_P(ImageModelsOnAGpu, ComputeInBf16) {
  const torch::NoGradGuard no_gradient;
  const torch::Tensor want = run(*cpu_);
  cpu_->to(torch::kBFloat16), gpu_->to(torch::kBFloat16);
  EXPECT_LE(distance(run(*gpu_), want), std::max(GetParam().bf16, 2 * distance(run(*cpu_), want)));
}

INSTANTIATE_TEST_SUITE_P(All, ImageModelsOnAGpu, testing::ValuesIn(image_cases()),
                         [](const testing::TestParamInfo<ImageCase>& one) { return one.param.name; });

// What can be said without a GPU: every case is built and has finite outputs and gradients.
TEST(ImageModels, CasesRunOnTheCpu) {
  for (const ImageCase& one : image_cases()) {
    torch::manual_seed(1);
    const std::shared_ptr<torch::nn::Module> model = one.make();
    model->eval();
    const torch::Tensor out = one.run(*model, one.inputs);
    ASSERT_TRUE(out.isfinite().all().item<bool>()) << one.name;
    torch::manual_seed(9);
    (out * torch::randn(out.sizes())).mean().backward();
    for (const auto& item : model->named_parameters()) {
      const torch::Tensor gradient = item.value().requires_grad() ? item.value().grad() : torch::Tensor();
      if (!gradient.defined()) continue;
      EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << one.name << " " << item.key();
    }
  }
}

}  // namespace
}  // namespace mhla
