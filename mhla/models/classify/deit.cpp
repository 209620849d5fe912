#include "mhla/models/classify/deit.h"

#include "mhla/models/classify/classifier_attention.h"
#include "mhla/models/classify/classifier_plan.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
DeitBlockImpl::DeitBlockImpl(const ClassifierConfig& c, const Layout& layout, double drop_path)
    : drop_path_(drop_path), dropout_(c.dropout) {
  const std::int64_t dim = c.dims[0];
  const bool rms = c.official && c.attention == "linear";  // as the published linear models have it
  if (c.cpe != 0) cpe_ = register_module("cpe", Cpe(layout, dim, c.cpe));
  norm1_ = register_module("norm1", TokenNorm(dim, rms));
  attn_ = make_deit_attention(c, layout);
  register_module("attn", attn_);
  if (!has_mlp(c.attention)) return;
  norm2_ = register_module("norm2", TokenNorm(dim, rms));
  const auto width = static_cast<std::int64_t>(c.mlp_ratio * static_cast<double>(dim));
  mlp_ = register_module("mlp", Mlp(dim, width, c.dropout));
}

torch::Tensor DeitBlockImpl::forward(torch::Tensor x, const Attend& attend) {
  if (!cpe_.is_empty()) x = cpe_(x);
  const torch::Tensor seen = torch::dropout(attend(*attn_, norm1_(x)), dropout_, is_training());
  x = x + drop_path(seen, drop_path_, is_training());
  return mlp_.is_empty() ? x : x + drop_path(mlp_(norm2_(x)), drop_path_, is_training());
}

DeitImpl::DeitImpl(const ClassifierConfig& given) : Classifier(given) {
  const ClassifierConfig& c = config();
  const StagePlan plan = plan_of(c).front();
  layout_ = plan.layout;
  const std::int64_t rows = layout_.grid[1], columns = layout_.grid[2], dim = c.dims[0], depth = plan.depth;
  const torch::Tensor table = torch::empty({1, rows * columns, dim}).normal_(0.0, 0.02);
  if (c.pos_init == "sincos") table.copy_(sincos_positions(rows, columns, dim).unsqueeze(0));
  pos_embed_ = register_parameter("pos_embed", table);
  proj_ = torch::nn::Conv2d(torch::nn::Conv2dOptions(c.channels, dim, c.patch).stride(c.patch));
  const auto patch_embed = std::make_shared<torch::nn::Module>();
  patch_embed->register_module("proj", proj_);
  register_module("patch_embed", patch_embed);
  torch::nn::ModuleList blocks;
  for (std::int64_t index = 0; index < depth; ++index) {
    blocks_.emplace_back(c, layout_, drop_path_rate(c.drop_path, index, depth));
    blocks->push_back(blocks_.back());
    add_attention_layer(str("blocks.", index, ".attn"), blocks_.back()->attention(), layout_);
  }
  register_module("blocks", blocks);
  fc_norm_ = register_module("fc_norm", TokenNorm(dim));
  head_ = register_module("head", torch::nn::Linear(dim, c.classes));
  init_linears(*this, c.init_std);
}

torch::Tensor DeitImpl::features(const torch::Tensor& images) {
  expect_images(images);
  const ClassifierConfig& c = config();
  torch::Tensor x = images;
  if (c.pad[0] != 0 || c.pad[1] != 0) {
    const auto missing = [&](std::size_t axis) { return c.pad[axis] != 0 ? c.pad[axis] - c.image[axis] : 0; };
    const std::int64_t rows = missing(0), columns = missing(1);
    x = torch::constant_pad_nd(x, {columns / 2, columns - columns / 2, rows / 2, rows - rows / 2});
  }
  x = proj_(x).flatten(2).transpose(1, 2).contiguous() + pos_embed_;  // [B, N, C]: all sums that follow lie like this
  x = torch::dropout(x, c.dropout, is_training());
  const auto attend_to = [&](Attention& attention, const torch::Tensor& tokens) { return attend(attention, tokens); };
  for (DeitBlock& block : blocks_) x = block->forward(x, attend_to);
  return fc_norm_(x.mean(1));
}

std::vector<std::pair<std::string, Layout>> DeitImpl::position_tables() const {
  std::vector<std::pair<std::string, Layout>> tables{{"pos_embed", layout_}};
  if (config().attention == "focused") {
    for (const AttentionLayer& layer : attention_layers())
      tables.emplace_back(layer.name + ".positional_encoding", layout_);
  }
  return tables;
}

}  // namespace mhla
