// The recorded numbers of diffusers' AutoencoderKL and AutoencoderDC: outputs and every gradient.
#include "mhla/models/autoencoder/autoencoder.h"
#include "mhla/models/golden_fixture.h"

namespace mhla {
namespace {

AnyAutoencoder model_of(const GoldenCase& golden, const char* name) {
  JsonValue object = golden.options;
  object.set("_class_name", name);
  AnyAutoencoder model = make_autoencoder(parse_autoencoder_config(object, golden.name));
  load_published(*model, golden.part("param."));
  return model;
}

void expect_gradients(const GoldenCase& golden, const Autoencoder& model, const Weights& inputs) {
  expect_golden(to_published(model.config(), gradients_of(model), AutoencoderNames::kDiffusers),
                golden.part("grad.param."), golden.name);
  Weights got;
  for (const auto& [name, value] : inputs) got[name] = value.grad();
  expect_golden(got, golden.part("grad.in."), golden.name);
}

torch::Tensor leaf(const GoldenCase& golden, const char* key) { return golden.at(key).clone().requires_grad_(); }

TEST(AutoencoderGolden, Kl) {
  const std::vector<GoldenCase> cases = golden_cases("image/vae_kl");
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase& golden : cases) {
    const AnyAutoencoder model = model_of(golden, "AutoencoderKL");
    const torch::Tensor x = leaf(golden, "in.x"), z = leaf(golden, "in.z"), noise = leaf(golden, "in.noise");
    const Posterior posterior = model->posterior(x);
    const torch::Tensor out = model->decode_unscaled(z), latent = model->encode(x, noise);
    expect_golden({{"", out},
                   {".mean", posterior.mean},
                   {".logvar", posterior.logvar},
                   {".std", posterior.std()},
                   {".latent", latent}},
                  golden.part("out"), golden.name);
    torch::autograd::backward({out, latent}, {golden.at("dout"), golden.at("dout.latent")});
    expect_gradients(golden, *model, {{"x", x}, {"z", z}, {"noise", noise}});
  }
}

TEST(AutoencoderGolden, Dc) {
  const std::vector<GoldenCase> cases = golden_cases("image/vae_dc");
  ASSERT_EQ(cases.size(), 2u);
  for (const GoldenCase& golden : cases) {
    const AnyAutoencoder model = model_of(golden, "AutoencoderDC");
    const torch::Tensor x = leaf(golden, "in.x"), z = leaf(golden, "in.z");
    const torch::Tensor out = model->decode_unscaled(z), latent = model->posterior(x).mean;
    expect_golden({{"", out}, {".latent", latent}}, golden.part("out"), golden.name);
    torch::autograd::backward({out, latent}, {golden.at("dout"), golden.at("dout.latent")});
    expect_gradients(golden, *model, {{"x", x}, {"z", z}});
  }
}

}  // namespace
}  // namespace mhla
