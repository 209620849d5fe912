#include <cmath>

#include "apps/engine/golden/golden.h"
#include "mhla/core/error.h"

namespace mhla::golden {
namespace {

std::int64_t square_root(std::int64_t value, const char* key) {
  const auto root = static_cast<std::int64_t>(std::llround(std::sqrt(static_cast<double>(value))));
  if (root * root != value) fail("metadata '", key, "' is ", value, ", expected a square number of tokens");
  return root;
}

}  // namespace

Loaded load_layer(MhlaAttentionOptions options, const Weights& published) {
  Loaded loaded;
  loaded.family = weight_family_of(published);
  Weights ours = from_published(published, loaded.family);
  adapt_options(options, ours);
  options.dropout = 0.0;  // golden cases were recorded in evaluation mode
  loaded.layer = MhlaAttention(options);
  loaded.initial_mix = loaded.layer->mix.detach().clone();
  if (ours.count("mix") == 0) ours["mix"] = loaded.initial_mix;  // plain linear attention has none
  const torch::Tensor& like = published.begin()->second;
  loaded.layer->to(like.device(), like.scalar_type());
  load_weights(*loaded.layer, ours);
  return loaded;
}

void Loaded::add_gradients(const std::string& prefix, Tensors& results) const {
  Weights gradients = gradients_of(*layer);
  if (!layer->options().learn_mix) gradients.erase("mix");
  for (const auto& [name, value] : to_published(gradients, family, layer->widths()))
    results["grad.param." + prefix + name] = value;
}

torch::Tensor block_order(const Layout& layout) {
  const auto& grid = layout.grid;
  const auto& blocks = layout.blocks;
  return torch::arange(grid[1] * grid[2])
      .view({blocks[1], grid[1] / blocks[1], blocks[2], grid[2] / blocks[2]})
      .permute({0, 2, 1, 3})
      .reshape({-1});
}

Layout window_layout(const Case& c, const char* window_key) {
  const std::int64_t side = square_root(c.integer("embed_len"), "embed_len");
  const std::int64_t window = square_root(c.integer(window_key), window_key);
  if (side % window != 0)
    fail("metadata '", window_key, "': windows of ", window, " do not divide a side of ", side, " tokens");
  return Layout::grid2d(side, side, side / window, side / window);
}

MixInit mix_init(const Case& c, const char* transform) {
  MixInit init;
  init.transform = parse_mix_transform(c.text("transform", transform));
  init.official = true;
  init.exp_sigma = c.number("exp_sigma", init.exp_sigma);
  init.local_threshold = c.number("local_thres", init.local_threshold);
  return init;
}

}  // namespace mhla::golden
