// The attention modules of the published code, in `official` mode.
#include "apps/engine/golden/golden.h"
#include "mhla/core/error.h"

namespace mhla::golden {
namespace {

// Forward, and backward where the case has one, of a layer behind `forward`.
Tensors run(const Case& c, Loaded& loaded, const std::function<torch::Tensor(const torch::Tensor&)>& forward) {
  Tensors results;
  torch::Tensor x = c.leaf("in.x");
  const torch::Tensor out = forward(x);
  results["out"] = out.detach();
  results["init.mixing"] = loaded.initial_mix;
  if (c.has("dout")) {
    out.backward(c.tensor("dout"));
    results["grad.in.x"] = x.grad();
    loaded.add_gradients("", results);
  }
  return results;
}

void expect_axes(const torch::Tensor& x, std::int64_t axes, const char* letters) {
  if (x.dim() != axes) fail("in.x has shape ", c10::str(x.sizes()), ", expected ", letters);
}

Features lm_features(const std::string& name) {
  if (name == "elu") return fused(FeatureMap::kElu1);  // fla's name for ELU + 1
  return parse_features(name);
}

Tensors compute_lm_layer(const Case& c) {
  c.expect_keys({"hidden_size", "expand_k", "expand_v", "num_heads", "num_kv_heads", "feature_map", "use_output_gate",
                 "norm_eps", "gate_fn"});
  const std::int64_t dim = c.integer("hidden_size"), heads = c.integer("num_heads");
  if (c.text("gate_fn", "swish") != "swish")
    fail("metadata 'gate_fn' is '", c.text("gate_fn", ""), "', expected swish");
  MhlaAttentionOptions o = MhlaAttentionOptions::lm(dim, heads, /*official=*/true);
  o.head_dim = static_cast<std::int64_t>(static_cast<double>(dim) * c.number("expand_k", 0.5)) / heads;
  o.value_dim = static_cast<std::int64_t>(static_cast<double>(dim) * c.number("expand_v", 1.0)) / heads;
  if (c.config.contains("num_kv_heads") && !c.config.at("num_kv_heads").is_null())
    o.kv_heads = c.integer("num_kv_heads");
  o.features = lm_features(c.text("feature_map", "relu"));
  o.norm_eps = c.number("norm_eps", 1e-6);
  Weights published = c.weights("param.");
  if (published.count("mixing_matrix") != 0) o.max_tokens = o.chunk * published.at("mixing_matrix").size(0);
  Loaded loaded = load_layer(o, published);
  if ((loaded.family == "lm_gated") != c.flag("use_output_gate", true))
    fail("metadata 'use_output_gate' does not agree with the weights, which are ", loaded.family);
  expect_axes(c.tensor("in.x"), 3, "[B, T, hidden_size]");
  return run(c, loaded, [&](const torch::Tensor& x) { return loaded.layer->forward(x); });
}

Tensors compute_video(const Case& c) {
  c.expect_keys({"dim", "num_heads", "block_layout", "transform", "qk_norm", "eps", "grid", "is_gated", "is_lepe",
                 "normalize_out", "exp_sigma", "local_thres"});
  const auto axes = [&](const char* key) {
    if (!c.config.contains(key) || c.config.at(key).items().size() != 3)
      fail("metadata '", key, "' is no list of three");
    std::array<std::int64_t, 3> sizes{};
    for (std::size_t i = 0; i < 3; ++i) sizes[i] = c.config.at(key).items()[i].as_int();
    return sizes;
  };
  MhlaAttentionOptions o = MhlaAttentionOptions::video(c.integer("dim"), c.integer("num_heads"),
                                                       Layout::grid3d(axes("grid"), axes("block_layout")), true);
  o.mix_init = mix_init(c, "linear");
  o.qk_norm_eps = c.number("eps", 1e-6);
  if (c.flag("normalize_out", false)) o.normalizer = Normalizer::kOfficial;
  Loaded loaded = load_layer(o, c.weights("param."));
  const MhlaAttentionOptions& found = loaded.layer->options();
  const auto agree = [&](const char* key, bool otherwise, bool there) {
    if (c.flag(key, otherwise) != there) fail("metadata '", key, "' does not agree with the weights");
  };
  agree("is_gated", false, found.gate != Gate::kNone);
  agree("is_lepe", false, found.lepe != 0);
  agree("qk_norm", true, found.qk_norm);
  expect_axes(c.tensor("in.x"), 3, "[B, F*H*W, dim]");
  return run(c, loaded, [&](const torch::Tensor& x) { return loaded.layer->forward(x); });
}

// The image and the DiT module: input in block order.
Tensors compute_window(const Case& c, bool dit) {
  const char* window = dit ? "block_size" : "window_size";
  c.expect_keys(
      {"dim", "heads", "dropout", "qk_norm", "transform", "qkv_bias", window, "embed_len", "exp_sigma", "local_thres"});
  const Layout layout = window_layout(c, window);
  const auto make = dit ? MhlaAttentionOptions::dit : MhlaAttentionOptions::image;
  MhlaAttentionOptions o = make(c.integer("dim"), c.integer("heads"), layout, /*official=*/true);
  o.mix_init = mix_init(c, dit ? "linear" : "cos");
  Loaded loaded = load_layer(o, c.weights("param."));
  if (loaded.layer->options().qk_norm != c.flag("qk_norm", !dit))
    fail("metadata 'qk_norm' does not agree with the weights");
  const torch::Tensor& given = c.tensor("in.x");
  expect_axes(given, 4, "[B, M, N_b, dim]");
  const torch::Tensor order = block_order(layout).to(given.device());
  if (given.size(1) * given.size(2) != order.numel())
    fail("in.x has shape ", c10::str(given.sizes()), ", expected ", order.numel(), " tokens");
  return run(c, loaded, [&](const torch::Tensor& x) {
    const torch::Tensor tokens = x.flatten(1, 2);
    const torch::Tensor raster = torch::zeros_like(tokens).index_copy(1, order, tokens);
    return loaded.layer->forward(raster).index_select(1, order).view_as(x);
  });
}

Tensors compute_linear_attention(const Case& c) {
  c.expect_keys({"dim", "heads"});
  Loaded loaded = load_layer(MhlaAttentionOptions::linear(c.integer("dim"), c.integer("heads")), c.weights("param."));
  expect_axes(c.tensor("in.x"), 3, "[B, N, dim]");
  Tensors results = run(c, loaded, [&](const torch::Tensor& x) { return loaded.layer->forward(x); });
  results.erase("init.mixing");
  return results;
}

const Family kFamilies[] = {
    {"LM layer", compute_lm_layer},
    {"video module", compute_video},
    {"DiT module", [](const Case& c) { return compute_window(c, /*dit=*/true); }},
    {"image classification module", [](const Case& c) { return compute_window(c, /*dit=*/false); }},
    {"linear attention module", compute_linear_attention},
};

}  // namespace
}  // namespace mhla::golden
