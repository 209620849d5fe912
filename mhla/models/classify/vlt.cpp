#include "mhla/models/classify/vlt.h"

#include <cmath>

#include "mhla/models/classify/classifier_attention.h"
#include "mhla/models/classify/classifier_plan.h"
#include "mhla/modules/zoo/focused.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/ops/ops.h"

namespace mhla {
namespace {

torch::nn::Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1));
}

torch::Tensor to_image(const torch::Tensor& tokens, const Layout& layout) {
  return tokens.transpose(1, 2).unflatten(-1, {layout.grid[1], layout.grid[2]});
}

torch::Tensor to_tokens(const torch::Tensor& image) { return image.flatten(2).transpose(1, 2); }

// Convolutions and linear layers normal with deviation 0.02, biases 0.
void init_convolutions(torch::nn::Module& module) {
  const torch::NoGradGuard no_gradient;
  for (const auto& item : module.named_parameters()) {
    const std::string& name = item.key();
    if (name.find("gamma_") != std::string::npos || name.find("dt_proj") != std::string::npos) continue;
    const bool is_bias = name.size() > 5 && name.compare(name.size() - 5, 5, ".bias") == 0;
    torch::Tensor value = item.value();
    if (value.dim() == 4) value.normal_(0.0, 0.02);
    if (is_bias) value.zero_();
  }
}

}  // namespace

PointConvImpl::PointConvImpl(std::int64_t in, std::int64_t out) {
  weight = register_parameter("weight", torch::empty({out, in, 1, 1}).normal_(0.0, 0.02));
  bias = register_parameter("bias", torch::zeros({out}));
}

VltBlockImpl::VltBlockImpl(const ClassifierConfig& c, std::string_view attention, std::size_t stage,
                           const Layout& layout, double drop_path)
    : drop_path_(drop_path), dropout_(c.dropout) {
  const std::int64_t dim = c.dims[stage];
  const auto nested = [&](const char* name) {  // published as <name>.norm
    const auto holder = std::make_shared<torch::nn::Module>();
    register_module(name, holder);
    return holder->register_module("norm", TokenNorm(dim));
  };
  if (c.cpe != 0) pos_ = register_module("pos", GridConv(layout, dim, c.cpe));
  norm1_ = nested("norm1");
  attn_ = make_vlt_attention(c, attention, stage, layout);
  register_module("attn", attn_);
  gamma_1_ = register_parameter("gamma_1", torch::ones({1, dim, 1, 1}));
  if (!has_mlp(attention)) return;
  norm2_ = nested("norm2");
  const auto width = static_cast<std::int64_t>(c.mlp_ratio * static_cast<double>(dim));
  const auto ffn = std::make_shared<torch::nn::Module>();
  fc1_ = ffn->register_module("fc1", PointConv(dim, width));
  dwconv_ = ffn->register_module("dwconv", GridConv(layout, width, 3));
  fc2_ = ffn->register_module("fc2", PointConv(width, dim));
  register_module("ffn", ffn);
  gamma_2_ = register_parameter("gamma_2", torch::ones({1, dim, 1, 1}));
}

torch::Tensor VltBlockImpl::forward(torch::Tensor x, const Attend& attend) {
  const auto dropped = [&](const torch::Tensor& y) { return torch::dropout(y, dropout_, is_training()); };
  if (!pos_.is_empty()) x = x + pos_(x);
  x = x + drop_path(gamma_1_.flatten() * dropped(attend(*attn_, norm1_(x))), drop_path_, is_training());
  if (fc1_.is_empty()) return x;
  torch::Tensor y = ops::erf_gelu(fc1_(norm2_(x)));
  y = dropped(fc2_(y + dwconv_(y)));
  return x + drop_path(gamma_2_.flatten() * y, drop_path_, is_training());
}

VltImpl::VltImpl(const ClassifierConfig& given) : Classifier(given) {
  const ClassifierConfig& c = config();
  const std::int64_t first = c.dims[0], half = std::max<std::int64_t>(1, first / 2);
  stem_ = torch::nn::Sequential(conv3x3(c.channels, half, 2), BatchNorm(half), torch::nn::GELU(),
                                conv3x3(half, half, 1), BatchNorm(half), torch::nn::GELU(), conv3x3(half, half, 1),
                                BatchNorm(half), torch::nn::GELU(), conv3x3(half, first, 2), BatchNorm(first));
  const auto patch_embed = std::make_shared<torch::nn::Module>();
  patch_embed->register_module("proj", stem_);
  register_module("patch_embed", patch_embed);

  std::int64_t total = 0;
  for (const std::int64_t depth : c.depths) total += depth;
  const std::vector<StagePlan> plan = plan_of(c);
  std::int64_t index = 0;  // of the block in the whole model, as softmax attention counts them
  torch::nn::ModuleList layers;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    Stage& s = stages_.emplace_back();
    s.layout = plan[stage].layout;
    const auto layer = std::make_shared<torch::nn::Module>();
    torch::nn::ModuleList blocks;
    for (std::int64_t j = 0; j < plan[stage].depth; ++j) {
      const std::int64_t place = index + std::min(j, c.depths[stage] - 1);
      s.blocks.emplace_back(c, plan[stage].attention, stage, s.layout, drop_path_rate(c.drop_path, place, total));
      blocks->push_back(s.blocks.back());
      add_attention_layer(str("layers.", stage, ".blocks.", j, ".attn"), s.blocks.back()->attention(), s.layout);
    }
    index += c.depths[stage];
    layer->register_module("blocks", blocks);
    if (stage < 3) {
      const auto downsample = std::make_shared<torch::nn::Module>();
      s.reduction = downsample->register_module("reduction", conv3x3(c.dims[stage], c.dims[stage + 1], 2));
      s.norm = downsample->register_module("norm", BatchNorm(c.dims[stage + 1]));
      layer->register_module("downsample", downsample);
    }
    layers->push_back(layer);
  }
  register_module("layers", layers);
  proj_ = register_module("proj", PointConv(c.dims[3], kVltFinal));
  norm_ = register_module("norm", BatchNorm(kVltFinal));
  head_ = register_module("head", PointConv(kVltFinal, c.classes));
  init_linears(*this, config().init_std);
  init_convolutions(*this);
}

torch::Tensor VltImpl::features(const torch::Tensor& images) {
  expect_images(images);
  const auto attend_to = [&](Attention& attention, const torch::Tensor& tokens) { return attend(attention, tokens); };
  torch::Tensor x = to_tokens(stem_->forward(images));
  for (Stage& stage : stages_) {
    for (VltBlock& block : stage.blocks) x = block->forward(x, attend_to);
    if (!stage.reduction.is_empty()) x = to_tokens(stage.norm(stage.reduction(to_image(x, stage.layout))));
  }
  x = norm_(to_image(proj_(x), stages_.back().layout));
  return torch::silu(x).flatten(2).mean(-1);
}

std::vector<std::pair<std::string, Layout>> VltImpl::position_tables() const {
  std::vector<std::pair<std::string, Layout>> tables;
  if (config().attention != "focused") return tables;
  for (const AttentionLayer& layer : attention_layers()) {
    if (layer.attention->as<FocusedAttentionImpl>() != nullptr)
      tables.emplace_back(layer.name + ".positional_encoding", layer.layout);
  }
  return tables;
}

}  // namespace mhla
