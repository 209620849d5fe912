#include "mhla/models/sana/sana_recorded.h"

#include "mhla/models/sana/sana.h"

namespace mhla {
namespace {

SanaConfig config_of(const RecordedCase& c) {
  c.expect_keys({"hidden_size", "linear_head_dim", "depth", "num_heads", "mlp_ratio", "in_channels", "patch_size",
                 "caption_channels", "model_max_length", "norm_eps", "names", "attention", "eps", "qk_norm",
                 "qk_norm_eps", "official", "blocks", "normalizer", "features"});
  SanaConfig config = sana_config("sana_600m", c.text("attention", "linear"));
  config.dim = c.integer("hidden_size"), config.head_dim = c.integer("linear_head_dim");
  config.depth = c.integer("depth"), config.cross_heads = c.integer("num_heads");
  config.mlp_ratio = c.number("mlp_ratio", config.mlp_ratio), config.channels = c.integer("in_channels");
  config.patch = c.integer("patch_size"), config.caption_dim = c.integer("caption_channels");
  config.caption_tokens = c.integer("model_max_length");
  config.caption_norm_eps = c.number("norm_eps", config.caption_norm_eps), config.eps = c.number("eps", config.eps);
  config.truncate_t = c.text("names") == "original";
  config.qk_norm = c.flag("qk_norm", false), config.qk_norm_eps = c.number("qk_norm_eps", config.qk_norm_eps);
  config.features = c.text("features", config.features.c_str());
  if (config.attention == "mhla") {
    c.expect_text("normalizer", "paper");
    if (c.flag("official", false)) fail("metadata 'official' is true, expected false: SANA with MHLA is not published");
    if (!c.config.contains("blocks")) fail("metadata 'blocks' is missing");
    labelled("metadata 'blocks'", [&] { fields::from_json(c.config.at("blocks"), config.blocks); });
  }
  return config;
}

Weights sana(const RecordedCase& c) {
  const SanaConfig config = config_of(c);
  const bool diffusers = c.text("names") == "diffusers";
  if (!diffusers) c.expect_text("names", "original");
  Sana model(config);
  Weights results;
  if (config.attention == "mhla") results["init.mixing"] = model->blocks()[0]->attention()->mix.detach().clone();
  const torch::Tensor x = c.leaf("in.x"), y = c.leaf("in.y"), t = c.leaf("in.t");
  model->to(x.device(), x.scalar_type());
  load_published(*model, c.weights("param."));
  const torch::Tensor out = model.ptr()->denoise(x, t, {{}, y, c.index("in.mask")});
  results["out"] = out;
  if (!c.has("dout")) return results;
  out.backward(c.tensor("dout"));
  results["grad.in.x"] = x.grad(), results["grad.in.y"] = y.grad();
  if (!config.truncate_t) results["grad.in.t"] = t.grad();  // vanishes for whole numbers
  for (const auto& [name, value] :
       to_published(config, gradients_of(*model), diffusers ? SanaNames::kDiffusers : SanaNames::kOriginal)) {
    if (!name.ends_with(".attn2.to_k.bias")) results["grad.param." + name] = value;  // vanishes under softmax
  }
  return results;
}

}  // namespace

RecordedFamilies sana_recorded() { return {{"sana", sana}}; }

}  // namespace mhla
