#include "mhla/models/dit/dit_recorded.h"

#include <cmath>

#include "mhla/models/dit/dit.h"

namespace mhla {
namespace {

// A number for both axes, or one for each.
std::array<std::int64_t, 2> sides(const RecordedCase& c, const char* key) {
  if (!c.config.contains(key)) fail("metadata '", key, "' is missing");
  const JsonValue& value = c.config.at(key);
  if (!value.is_array()) return {value.as_int(), value.as_int()};
  std::array<std::int64_t, 2> both{};
  labelled(str("metadata '", key, "'"), [&] { fields::from_json(value, both); });
  return both;
}

Weights embeddings(const RecordedCase& c) {
  c.expect_keys({"timestep_dim", "table_dim", "grid", "rect", "base_size", "interpolation_scale"});
  const std::int64_t channels = c.integer("timestep_dim"), dim = c.integer("table_dim");
  const auto grid = sides(c, "grid"), rect = sides(c, "rect"), base = sides(c, "base_size");
  const torch::Tensor& t = c.tensor("in.t");
  return {{"out.timestep", time_features(t, 0, channels)},
          {"out.timestep_shift1", time_features(t, 1, channels)},
          {"out.pos_embed", dit_positions(grid[0], grid[1], dim)},
          {"out.pos_embed_rect", dit_positions(rect[0], rect[1], dim, base, c.number("interpolation_scale", 1.0))}};
}

Weights block(const RecordedCase& c) {
  c.expect_keys({"hidden_size", "num_heads", "mlp_ratio", "attention", "norm2_eps"});
  c.expect_text("attention", "softmax");
  const torch::Tensor x = c.leaf("in.x"), condition = c.leaf("in.c");
  DitConfig config = dit_config("dit_s_2", "softmax");
  config.dim = c.integer("hidden_size"), config.heads = c.integer("num_heads");
  config.mlp_ratio = c.number("mlp_ratio", 4.0), config.norm2_eps = c.number("norm2_eps", 1e-6);
  config.patch = 1, config.image = {1, x.size(1)};  // softmax attention does not ask how the tokens lie
  const DitPlan plan = plan_of(config);
  DitBlock block(config, plan, plan.layout);
  block->to(x.device(), x.scalar_type());
  load_state(*block, c.weights("param."));
  const torch::Tensor out = block->forward({x, {}, {}}, condition).settled();
  out.backward(c.tensor("dout"));
  Weights results{{"out", out}, {"grad.in.x", x.grad()}, {"grad.in.c", condition.grad()}};
  for (const auto& [name, value] : gradients_of(*block)) results["grad.param." + name] = value;
  return results;
}

void set_sizes(const RecordedCase& c, DitConfig& config) {
  config.image = sides(c, "input_size"), config.patch = c.integer("patch_size");
  config.channels = c.integer("in_channels"), config.dim = c.integer("hidden_size");
  config.depth = c.integer("depth"), config.heads = c.integer("num_heads"), config.classes = c.integer("num_classes");
  config.learn_sigma = c.flag("learn_sigma", true), config.mlp_ratio = c.number("mlp_ratio", 4.0);
}

// MHLA as the case says; of the official code, windows of block_size tokens.
void set_mhla(const RecordedCase& c, DitConfig& config) {
  const Weights published = c.weights("param.");
  const auto lepe = published.find("blocks.0.attn.lepe.weight");
  config.lepe = lepe == published.end() ? 0 : lepe->second.size(-1);
  config.gate = c.text("gate", "none"), config.head_norm = c.flag("head_norm", false);
  config.qk_norm = c.flag("qk_norm", false), config.dwconv = c.flag("dwconv", false) ? 3 : 0;
  config.features = c.text("features", "relu_eps"), config.normalizer = c.text("normalizer", "paper");
  config.mix_init = c.text("transform", "linear"), config.mix_sigma = c.number("exp_sigma", 3.0);
  if (const double eps = c.number("eps", 1e-6); eps != 1e-6) fail("metadata 'eps' is ", eps, ", expected 1e-6");
  if (const auto wanted = static_cast<std::int64_t>(c.number("lepe", static_cast<double>(config.lepe)));
      wanted != config.lepe)
    fail("metadata 'lepe' is ", wanted, ", but the weights have ", config.lepe);
  config.blocks = {1, 1};
  if (!config.official) {
    config.blocks = sides(c, "blocks");
    return;
  }
  const std::int64_t size = c.integer("block_size"), side = std::llround(std::sqrt(static_cast<double>(size)));
  if (side * side != size) fail("metadata 'block_size' is ", size, ", expected a square number of tokens");
  config.blocks = {config.rows() / side, config.columns() / side};
}

// Guidance as published: the first half of x twice, all outputs of both halves.
void add_guided(const RecordedCase& c, DitImpl& model, Weights& results) {
  if (!c.config.contains("cfg_scale")) return;
  const torch::NoGradGuard no_gradient;
  const DitConfig& config = model.config();
  const torch::Tensor& x = c.tensor("in.x");
  const std::int64_t n = x.size(0) / 2;
  torch::Tensor t, y;
  if (c.has("in.cfg_t")) {
    t = c.tensor("in.cfg_t"), y = c.index("in.cfg_y");
  } else {  // cfg_note: timestep 100, the classes of the first half and none
    const torch::Tensor classes = c.index("in.y").narrow(0, 0, n);
    t = torch::full({2 * n}, 100, x.options()), y = torch::cat({classes, torch::full_like(classes, config.classes)});
  }
  const torch::Tensor half = x.narrow(0, 0, n), out = model.forward(torch::cat({half, half}), t, y);
  const torch::Tensor conditional = out.narrow(0, 0, n), null = out.narrow(0, n, n);
  const auto mixed = [&](std::int64_t channels) {
    const auto first = [&](const torch::Tensor& z) { return z.narrow(1, 0, channels); };
    const torch::Tensor both = first(null) + c.number("cfg_scale", 1.0) * (first(conditional) - first(null));
    return torch::cat({both.repeat({2, 1, 1, 1}), out.narrow(1, channels, out.size(1) - channels)}, 1);
  };
  if (config.channels >= 3) results["out.cfg3"] = mixed(3);
  results["out.cfg_all"] = mixed(config.channels);
}

Weights run(const RecordedCase& c, const DitConfig& config, DitNames names) {
  Dit model(config);
  model->eval();
  Weights results;
  if (config.attention == "mhla" && !config.official)
    results["init.mixing"] = model->attention_layers()[0].attention->as<MhlaAttentionImpl>()->mix.detach().clone();
  torch::Tensor x = c.leaf("in.x");
  model->to(x.device(), x.scalar_type());
  load_published(*model, c.weights("param."));
  const torch::Tensor out = model->forward(x, c.tensor("in.t"), c.index("in.y"));
  results["out"] = out.detach();
  add_guided(c, *model, results);
  if (!c.has("dout")) return results;
  out.backward(c.tensor("dout"));
  results["grad.in.x"] = x.grad();
  Weights gradients = state_of(*model);
  for (const auto& [name, value] : gradients_of(*model))
    if (value.defined()) gradients[name] = value;
  load_state(*model, gradients);  // which gives them the published names
  for (const auto& [name, value] : published_weights(*model, names)) {
    const bool fixed = name == "pos_embed" || name.find(".attn1.to_k.bias") != std::string::npos;  // has none; vanishes
    if (!fixed) results["grad.param." + name] = value;
  }
  return results;
}

Weights dit(const RecordedCase& c) {
  c.expect_keys({"names",       "attention", "official",    "input_size",  "patch_size",  "in_channels",
                 "hidden_size", "depth",     "num_heads",   "num_classes", "learn_sigma", "mlp_ratio",
                 "cfg_scale",   "cfg_note",  "freq_shift",  "norm2_eps",   "block_size",  "blocks",
                 "transform",   "exp_sigma", "local_thres", "qk_norm",     "dwconv",      "lepe",
                 "gate",        "head_norm", "normalizer",  "features",    "eps",         "own_embedders"});
  DitConfig config;
  config.model = "DiT", config.attention = c.text("attention", "softmax"), config.official = c.flag("official", false);
  set_sizes(c, config);
  if (config.attention == "mhla") set_mhla(c, config);
  const bool diffusers = c.text("names", "original") == "diffusers";
  config.freq_shift = static_cast<std::int64_t>(c.number("freq_shift", diffusers ? 1.0 : 0.0));
  config.norm2_eps = c.number("norm2_eps", diffusers ? 1e-5 : 1e-6);
  config.own_embedders = c.flag("own_embedders", diffusers);
  return run(c, config, diffusers ? DitNames::kDiffusers : DitNames::kOriginal);
}

Weights dig(const RecordedCase& c) {
  c.expect_keys({"names", "expand_k", "expand_v", "mlp_inner", "gate_low_rank", "gate_logit_normalizer", "norm_eps",
                 "learn_sigma", "input_size", "patch_size", "in_channels", "hidden_size", "depth", "num_heads",
                 "num_classes"});
  const auto expect = [&](const char* key, double value) {
    if (c.number(key, value) != value) fail("metadata '", key, "' is ", c.number(key, value), ", expected ", value);
  };
  expect("expand_k", 0.5), expect("expand_v", 1), expect("gate_low_rank", 16), expect("gate_logit_normalizer", 16);
  expect("norm_eps", 1e-6);
  DitConfig config = dit_config("dig_s_2", "gla");
  set_sizes(c, config);
  config.mlp_inner = c.integer("mlp_inner");
  return run(c, config, DitNames::kOriginal);
}

}  // namespace

RecordedFamilies dit_recorded() {
  return {{"dit_embeddings", embeddings}, {"dit_block", block}, {"dit", dit}, {"dig", dig}};
}

}  // namespace mhla
