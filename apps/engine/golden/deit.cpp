// A whole DeiT with MHLA, from image to logits, as the published code runs it.
#include "apps/engine/golden/golden.h"
#include "mhla/core/error.h"
#include "mhla/models/classify/classifier.h"

namespace mhla::golden {
namespace {

Tensors compute_deit(const Case& c) {
  c.expect_keys({"patch_size", "img_size", "input", "embed_dim", "depth", "num_heads", "num_classes", "qk_norm",
                 "window_size", "embed_len", "transform", "exp_sigma", "local_thres", "mlp_ratio"});
  torch::Tensor image = c.leaf("in.img");
  if (image.dim() != 4) fail("in.img has shape ", c10::str(image.sizes()), ", expected [B, 3, rows, columns]");
  const Layout layout = window_layout(c, "window_size");
  const std::int64_t side = c.integer("img_size");
  ClassifierConfig config = classifier_config("deit_tiny", "mhla", /*official=*/true);
  config.model = "DeiT";
  config.image = {image.size(2), image.size(3)}, config.channels = image.size(1), config.pad = {side, side};
  config.patch = c.integer("patch_size"), config.dims = {c.integer("embed_dim")};
  config.depths = {c.integer("depth")}, config.heads = {c.integer("num_heads")};
  config.classes = c.integer("num_classes"), config.mlp_ratio = c.number("mlp_ratio", 4.0);
  config.blocks = {{layout.blocks[1], layout.blocks[2]}};
  config.mix_init = c.text("transform", "cos"), config.mix_sigma = c.number("exp_sigma", 3.0);
  const Weights published = c.weights("param.");  // say themselves which parts there are
  const auto lepe = published.find("blocks.0.attn.lepe.weight");
  config.lepe = lepe == published.end() ? 0 : lepe->second.size(-1);
  config.qk_norm = published.count("blocks.0.attn.q_norm.weight") != 0;
  if (config.qk_norm != c.flag("qk_norm", config.qk_norm)) fail("metadata 'qk_norm' does not agree with the weights");
  if (side / config.patch != layout.grid[1])
    fail("metadata 'embed_len' is ", c.integer("embed_len"), ", but img_size and patch_size give ",
         side / config.patch * (side / config.patch), " tokens");
  const AnyClassifier model = make_classifier(config);
  model->eval();
  model->to(image.device(), image.scalar_type());
  load_published(*model, published);
  const torch::Tensor out = model->forward(image);

  Tensors results{{"out", out.detach()}};
  if (!c.has("dout")) return results;
  out.backward(c.tensor("dout"));
  results["grad.in.img"] = image.grad();
  const Weights gradients = gradients_of(*model);
  load_state(*model, gradients);  // which gives them the published names
  for (const auto& [name, value] : published_weights(*model)) results["grad.param." + name] = value;
  return results;
}

const Family kFamily("DeiT model", compute_deit);

}  // namespace
}  // namespace mhla::golden
