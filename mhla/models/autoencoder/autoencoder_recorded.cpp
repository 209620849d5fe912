#include "mhla/models/autoencoder/autoencoder_recorded.h"

#include "mhla/models/autoencoder/autoencoder.h"

namespace mhla {
namespace {

AutoencoderNames names_of(const RecordedCase& c) {
  if (c.text("names", "diffusers") == "diffusers") return AutoencoderNames::kDiffusers;
  c.expect_text("names", "original");
  return AutoencoderNames::kOriginal;
}

AnyAutoencoder model_of(const RecordedCase& c, const char* name) {
  JsonValue object = c.config;
  object.set("_class_name", name);
  AnyAutoencoder model = make_autoencoder(parse_autoencoder_config(object, "metadata"));
  model->to(c.tensor("in.x").device(), c.tensor("in.x").scalar_type());
  load_published(*model, c.weights("param."));
  return model;
}

void add_gradients(const RecordedCase& c, const Autoencoder& model, const Weights& inputs, Weights& results) {
  for (const auto& [name, value] : to_published(model.config(), gradients_of(model), names_of(c))) {
    const bool vanishes = name.ends_with(".to_k.bias") || name.ends_with(".mid.attn_1.k.bias");  // under softmax
    if (!vanishes) results["grad.param." + name] = value;
  }
  for (const auto& [name, value] : inputs) results["grad.in." + name] = value.grad();
}

Weights kl(const RecordedCase& c) {
  const AnyAutoencoder model = model_of(c, "AutoencoderKL");
  const torch::Tensor x = c.leaf("in.x"), z = c.leaf("in.z"), noise = c.leaf("in.noise");
  const Posterior posterior = model->posterior(x);
  const torch::Tensor out = model->decode_unscaled(z), latent = model->encode(x, noise);
  Weights results{{"out", out},
                  {"out.mean", posterior.mean},
                  {"out.logvar", posterior.logvar},
                  {"out.std", posterior.std()},
                  {"out.latent", latent}};
  torch::autograd::backward({out, latent}, {c.tensor("dout"), c.tensor("dout.latent")});
  add_gradients(c, *model, {{"x", x}, {"z", z}, {"noise", noise}}, results);
  return results;
}

Weights dc(const RecordedCase& c) {
  const AnyAutoencoder model = model_of(c, "AutoencoderDC");
  const torch::Tensor x = c.leaf("in.x"), z = c.leaf("in.z");
  const torch::Tensor out = model->decode_unscaled(z), latent = model->posterior(x).mean;
  Weights results{{"out", out}, {"out.latent", latent}};
  torch::autograd::backward({out, latent}, {c.tensor("dout"), c.tensor("dout.latent")});
  add_gradients(c, *model, {{"x", x}, {"z", z}}, results);
  return results;
}

}  // namespace

RecordedFamilies autoencoder_recorded() { return {{"vae_kl", kl}, {"vae_dc", dc}}; }

}  // namespace mhla
