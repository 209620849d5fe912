// A whole DeiT with MHLA, from image to logits, as the published code runs it: the image zero-padded to img_size (V23),
// no class token, no final norm before the mean. Tokens stay in raster order here: block order is the published code's
// way to reach blocks, and nothing else in the model can tell.
#include "apps/golden/golden.h"
#include "mhla/core/error.h"

namespace mhla::golden {

Tensors compute_deit(const Case& c) {
  c.expect_keys({"patch_size", "img_size", "input", "embed_dim", "depth", "num_heads", "num_classes", "qk_norm",
                 "window_size", "embed_len", "transform", "exp_sigma", "local_thres", "mlp_ratio"});
  const std::int64_t dim = c.integer("embed_dim"), depth = c.integer("depth"), patch = c.integer("patch_size");
  const std::int64_t side = c.integer("img_size");
  MhlaAttentionOptions o =
      MhlaAttentionOptions::image(dim, c.integer("num_heads"), window_layout(c, "window_size"), true);
  o.mix_init = mix_init(c, "cos");

  Tensors leaves;  // every parameter outside the attention layers
  for (const auto& [name, value] : c.weights("param.")) {
    if (name.find(".attn.") == std::string::npos) leaves[name] = c.leaf("param." + name);
  }
  const auto parameter = [&](const std::string& name) {
    const auto found = leaves.find(name);
    if (found == leaves.end()) fail("param.", name, " is missing");
    return found->second;
  };
  const auto linear = [&](const torch::Tensor& x, const std::string& name) {
    return torch::linear(x, parameter(name + ".weight"), parameter(name + ".bias"));
  };
  const auto norm = [&](const torch::Tensor& x, const std::string& name) {
    return torch::layer_norm(x, {dim}, parameter(name + ".weight"), parameter(name + ".bias"), 1e-6);
  };

  torch::Tensor image = c.leaf("in.img");
  if (image.dim() != 4) fail("in.img has shape ", c10::str(image.sizes()), ", expected [B, 3, rows, columns]");
  const std::int64_t rows = side - image.size(2), columns = side - image.size(3);
  const torch::Tensor padded =
      torch::constant_pad_nd(image, {columns / 2, columns - columns / 2, rows / 2, rows - rows / 2});
  const std::vector<std::int64_t> stride{patch, patch};
  torch::Tensor x =
      torch::conv2d(padded, parameter("patch_embed.proj.weight"), parameter("patch_embed.proj.bias"), stride)
          .flatten(2)
          .transpose(1, 2) +
      parameter("pos_embed");
  std::vector<Loaded> layers;
  for (std::int64_t block = 0; block < depth; ++block) {
    const std::string prefix = str("blocks.", block, ".");
    layers.push_back(load_layer(o, c.weights("param." + prefix + "attn.")));
    x = x + layers.back().layer->forward(norm(x, prefix + "norm1"));
    x = x + linear(torch::gelu(linear(norm(x, prefix + "norm2"), prefix + "mlp.fc1")), prefix + "mlp.fc2");
  }
  const torch::Tensor out = linear(norm(x.mean(1), "fc_norm"), "head");

  Tensors results{{"out", out.detach()}};
  if (!c.has_gradients()) return results;
  out.backward(c.tensor("dout"));
  results["grad.in.img"] = image.grad();
  for (const auto& [name, leaf] : leaves) {
    if (!leaf.grad().defined()) fail("param.", name, " is no part of this model");
    results["grad.param." + name] = leaf.grad();
  }
  for (std::int64_t block = 0; block < depth; ++block)
    layers[static_cast<std::size_t>(block)].add_gradients(str("blocks.", block, ".attn."), results);
  return results;
}

}  // namespace mhla::golden
