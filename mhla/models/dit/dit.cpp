#include "mhla/models/dit/dit.h"

#include <cmath>

#include "mhla/modules/exact.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/ops/ops.h"

namespace mhla {
namespace {

constexpr double kDitNormEps = 1e-6;

std::vector<torch::Tensor> rows_of(const torch::nn::Linear& modulation, const torch::Tensor& c, std::int64_t count) {
  return apply_linear(modulation, apply_silu(c)).unsqueeze(1).chunk(count, -1);  // [B, 1, dim] each
}

std::shared_ptr<torch::nn::Module> holder(const std::string& name, const torch::nn::Linear& linear) {
  auto module = std::make_shared<torch::nn::Module>();
  module->register_module(name, linear);
  return module;
}

void xavier(torch::Tensor weight, double gain = 1.0) {  // of the matrix [out, the rest]
  const auto out = static_cast<double>(weight.size(0)), in = static_cast<double>(weight.numel()) / out;
  const double bound = gain * std::sqrt(6.0 / (in + out));
  weight.uniform_(-bound, bound);
}

void set_zero(const torch::nn::Linear& linear) { linear->weight.zero_(), linear->bias.zero_(); }

// Tokens of a raster in the order of equal blocks.
torch::Tensor block_order(const Layout& layout) {
  const auto &grid = layout.grid, &blocks = layout.blocks;
  return torch::arange(grid[1] * grid[2])
      .view({blocks[1], grid[1] / blocks[1], blocks[2], grid[2] / blocks[2]})
      .permute({0, 2, 1, 3})
      .reshape({-1});
}

Layout transposed(const Layout& l) { return Layout::grid2d(l.grid[2], l.grid[1], l.blocks[2], l.blocks[1]); }

// Whether the grid is transposed when block `index` sees it.
bool is_turned(const DitConfig& c, std::int64_t index) { return c.scan && (index / 2) % 2 == 1; }

}  // namespace

torch::Tensor time_features(const torch::Tensor& t, std::int64_t shift, std::int64_t channels) {
  const std::int64_t half = channels / 2;
  const torch::ScalarType dtype = t.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const torch::Tensor k = torch::arange(half, torch::TensorOptions(dtype).device(t.device()));
  const torch::Tensor frequencies = (k * -std::log(10000.0) / static_cast<double>(half - shift)).exp();
  const torch::Tensor angles = t.to(dtype).unsqueeze(1) * frequencies;
  return torch::cat({angles.cos(), angles.sin()}, -1);
}

torch::Tensor dit_positions(std::int64_t rows, std::int64_t columns, std::int64_t dim, std::array<std::int64_t, 2> base,
                            double scale) {
  const std::int64_t count = dim / 4;
  const torch::Tensor frequencies = torch::pow(1e-4, torch::arange(count, torch::kDouble) / static_cast<double>(count));
  const auto axis = [&](std::int64_t places, std::int64_t own) {  // [places, dim / 2]
    const double stretch = own == 0 ? 1.0 : static_cast<double>(places) / static_cast<double>(own);
    const torch::Tensor at = torch::arange(places, torch::kDouble) / stretch / scale;
    const torch::Tensor angles = at.unsqueeze(-1) * frequencies;
    return torch::cat({angles.sin(), angles.cos()}, -1);
  };
  const std::vector<std::int64_t> shape{rows, columns, dim / 2};
  const torch::Tensor across = axis(columns, base[1]).unsqueeze(0).expand(shape);
  const torch::Tensor down = axis(rows, base[0]).unsqueeze(1).expand(shape);
  return torch::cat({across, down}, -1).flatten(0, 1).to(torch::kFloat);
}

torch::Tensor dit_positions(const DitConfig& c) {
  return dit_positions(c.rows(), c.columns(), c.dim, c.pos_base, c.pos_scale);
}

TimeEmbedderImpl::TimeEmbedderImpl(const DitConfig& c)
    : freq_shift_(c.freq_shift), first_(kTimeChannels, c.dim), second_(c.dim, c.dim) {
  const auto mlp = holder("0", first_);
  mlp->register_module("2", second_);
  register_module("mlp", mlp);
  const torch::NoGradGuard no_gradient;
  for (const torch::nn::Linear& linear : {first_, second_}) linear->weight.normal_(0.0, 0.02), linear->bias.zero_();
}

torch::Tensor TimeEmbedderImpl::forward(const torch::Tensor& t) {
  const torch::ScalarType dtype = first_->weight.scalar_type();
  const torch::Tensor features = time_features(t.to(dtype == torch::kDouble ? dtype : torch::kFloat), freq_shift_);
  return apply_linear(second_, apply_silu(apply_linear(first_, features.to(dtype))));
}

LabelEmbedderImpl::LabelEmbedderImpl(const DitConfig& c) {
  const torch::Tensor table = torch::empty({c.classes + (c.has_null_class() ? 1 : 0), c.dim}).normal_(0.0, 0.02);
  const auto inner = std::make_shared<torch::nn::Module>();
  table_ = inner->register_parameter("weight", table);
  register_module("embedding_table", inner);
}

torch::Tensor LabelEmbedderImpl::forward(const torch::Tensor& labels) {
  if (!labels.defined() || labels.dim() != 1) fail("Dit: no labels [B] are given, expected a class for every sample");
  if (labels.is_cpu() && labels.numel() > 0) {
    const auto least = labels.min().item<std::int64_t>(), most = labels.max().item<std::int64_t>();
    if (least < 0 || most >= table_.size(0))
      fail("Dit: class ", least < 0 ? least : most, " does not exist, expected 0 to ", table_.size(0) - 1);
  }
  return torch::embedding(table_, labels.to(torch::kLong));
}

DitBlockImpl::DitBlockImpl(const DitConfig& c, const DitPlan& plan, const Layout& layout) : norm2_eps_(c.norm2_eps) {
  if (c.own_embedders) {
    t_embedder_ = register_module("t_embedder", TimeEmbedder(c));
    y_embedder_ = register_module("y_embedder", LabelEmbedder(c));
  }
  if (c.cpe != 0) cpe_ = register_module("cpe", Cpe(layout, c.dim, c.cpe));
  attn_ = make_dit_attention(c, layout);
  register_module("attn", attn_);
  if (plan.mlp && c.family == "dig") {
    swiglu_ = register_module("mlp", Swiglu(c.dim, plan.width));
  } else if (plan.mlp) {
    fc1_ = torch::nn::Linear(c.dim, plan.width), fc2_ = torch::nn::Linear(plan.width, c.dim);
    const auto layers = holder("fc1", fc1_);
    layers->register_module("fc2", fc2_);
    register_module("mlp", layers);
  }
  modulation_ = torch::nn::Linear(c.dim, (plan.mlp ? 6 : 3) * c.dim);
  register_module("adaLN_modulation", holder("1", modulation_));
  if (c.dwconv != 0) dw_conv_ = register_module("dw_conv", GridConv(layout, c.dim, c.dwconv));
  if (c.dwconv != 0 && c.official) {  // the published code convolves tokens in block order as if they were a raster
    order_ = block_order(layout);
    place_ = order_.argsort();
  }
  init(/*small_attention=*/c.attention == "gla");
}

// Xavier for linear layers, but for feature maps and the steps of Mamba, which keep their own; modulations zero, so
// that a block is the identity at first; convolutions the identity. GLA's linear layers are smaller, as published.
void DitBlockImpl::init(bool small_attention) {
  const torch::NoGradGuard no_gradient;
  for (const auto& item : named_modules("", /*include_self=*/false)) {
    const std::string& name = item.key();
    auto* linear = item.value()->as<torch::nn::LinearImpl>();
    if (linear == nullptr || name.find("feature_map") != std::string::npos ||
        name.find("dt_proj") != std::string::npos || name.find("embedder") != std::string::npos)
      continue;
    xavier(linear->weight, small_attention && name.rfind("attn.", 0) == 0 ? std::exp2(-2.5) : 1.0);
    if (linear->bias.defined()) linear->bias.zero_();
  }
  set_zero(modulation_);
  if (!dw_conv_.is_empty()) dw_conv_->set_identity();
  if (!cpe_.is_empty())
    for (torch::Tensor parameter : cpe_->parameters()) parameter.zero_();
}

torch::Tensor DitBlockImpl::embed(const torch::Tensor& t, const torch::Tensor& labels) {
  return t_embedder_(t) + y_embedder_(labels);
}

torch::Tensor DitBlockImpl::mlp(const torch::Tensor& x) {
  if (!swiglu_.is_empty()) return swiglu_(x);
  return apply_linear(fc2_, apply_linear_gelu(fc1_, x));
}

ResidualStream DitBlockImpl::forward(ResidualStream stream, const torch::Tensor& c) {
  const bool with_mlp = !fc1_.is_empty() || !swiglu_.is_empty();
  const std::vector<torch::Tensor> m = rows_of(modulation_, c, with_mlp ? 6 : 3);
  if (!cpe_.is_empty()) stream = {cpe_(stream.settled()), {}, {}};
  const torch::Tensor seen = stream.norm(m[0], m[1], kDitNormEps);
  if (keep_) kept_ = seen.detach();
  stream.branch = attn_->forward(seen), stream.gate = m[2];
  if (with_mlp) stream.branch = mlp(stream.norm(m[3], m[4], norm2_eps_)), stream.gate = m[5];
  if (dw_conv_.is_empty()) return stream;
  const torch::Tensor x = stream.settled();
  if (!order_.defined()) return {dw_conv_(x), {}, {}};
  const auto reordered = [&](const torch::Tensor& y, const torch::Tensor& order) {
    return y.index_select(1, order.to(y.device()));
  };
  return {reordered(dw_conv_(reordered(x, order_)), place_), {}, {}};
}

DitImpl::DitImpl(const DitConfig& config) : config_(config), plan_(plan_of(config)) {
  const DitConfig& c = config_;
  pos_embed_ = register_parameter("pos_embed", dit_positions(c).unsqueeze(0), /*requires_grad=*/false);
  const auto proj = std::make_shared<torch::nn::Module>(), x_embedder = std::make_shared<torch::nn::Module>();
  patch_weight_ = proj->register_parameter("weight", torch::empty({c.dim, c.channels, c.patch, c.patch}));
  patch_bias_ = proj->register_parameter("bias", torch::zeros({c.dim}));
  x_embedder->register_module("proj", proj);
  register_module("x_embedder", x_embedder);
  if (!c.own_embedders) {
    t_embedder_ = register_module("t_embedder", TimeEmbedder(c));
    y_embedder_ = register_module("y_embedder", LabelEmbedder(c));
  }
  torch::nn::ModuleList blocks;
  for (std::int64_t index = 0; index < plan_.depth; ++index) {
    const Layout layout = is_turned(c, index) ? transposed(plan_.layout) : plan_.layout;
    blocks_.emplace_back(c, plan_, layout);
    blocks->push_back(blocks_.back());
    layers_.push_back({str("blocks.", index, ".attn"), blocks_.back()->attention(), layout});
  }
  register_module("blocks", blocks);
  final_modulation_ = torch::nn::Linear(c.dim, 2 * c.dim);
  final_linear_ = torch::nn::Linear(c.dim, c.patch * c.patch * c.out_channels());
  const auto final_layer = std::make_shared<torch::nn::Module>();
  final_layer->register_module("adaLN_modulation", holder("1", final_modulation_));
  final_layer->register_module("linear", final_linear_);
  register_module("final_layer", final_layer);
  const torch::NoGradGuard no_gradient;
  xavier(patch_weight_);
  set_zero(final_modulation_), set_zero(final_linear_);
}

torch::Tensor DitImpl::patches(const torch::Tensor& x) {
  const DitConfig& c = config_;
  const std::vector<std::int64_t> sizes{c.channels, c.image[0], c.image[1]};
  if (x.dim() != 4 || x.sizes().slice(1) != c10::IntArrayRef(sizes)) {
    fail(c.model, ": samples have shape ", c10::str(x.sizes()), ", expected [B, ", sizes[0], ", ", sizes[1], ", ",
         sizes[2], "]; resized() makes a model for another size");
  }
  const torch::Tensor cut = x.reshape({x.size(0), c.channels, c.rows(), c.patch, c.columns(), c.patch})
                                .permute({0, 2, 4, 1, 3, 5})
                                .reshape({x.size(0), c.rows() * c.columns(), c.channels * c.patch * c.patch});
  return apply_linear(cut.to(patch_weight_.scalar_type()), patch_weight_.flatten(1), patch_bias_);
}

torch::Tensor DitImpl::unpatched(const torch::Tensor& tokens) const {
  const DitConfig& c = config_;
  const std::int64_t B = tokens.size(0), rows = c.rows(), columns = c.columns();
  return tokens.reshape({B, rows, columns, c.patch, c.patch, c.out_channels()})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({B, c.out_channels(), rows * c.patch, columns * c.patch});
}

torch::Tensor DitImpl::forward(const torch::Tensor& x, const torch::Tensor& t, const torch::Tensor& labels) {
  if (t.dim() != 1 || t.size(0) != x.size(0))
    fail(config_.model, ": times have shape ", c10::str(t.sizes()), ", expected [", x.size(0), "]");
  ResidualStream stream{patches(x) + pos_embed_, {}, {}};
  const bool shared = share_ != nullptr && is_training();
  if (shared) {
    share_->begin(plan_.layout, stream.x.size(1), x.device());
    stream.x = share_->part_of(stream.x);
  } else if (share_ != nullptr) {
    share_->end();
  }
  const bool own = config_.own_embedders;
  const torch::Tensor condition = own ? blocks_[0]->embed(t, labels) : t_embedder_(t) + y_embedder_(labels);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    stream = blocks_[i]->forward(std::move(stream), own && i > 0 ? blocks_[i]->embed(t, labels) : condition);
    if (!config_.scan) continue;
    stream = {stream.settled().flip(1), {}, {}};
    if (i % 2 == 0) continue;
    const Layout& grid = layers_[i].layout;
    stream.x = stream.x.unflatten(1, {grid.grid[1], grid.grid[2]}).transpose(1, 2).flatten(1, 2);
  }
  const std::vector<torch::Tensor> m = rows_of(final_modulation_, condition, 2);
  const torch::Tensor out = apply_linear(final_linear_, stream.norm(m[0], m[1], kDitNormEps));
  return unpatched(shared ? share_->whole_of(out) : out);
}

void DitImpl::share_context(const std::shared_ptr<ContextShare>& share) {
  if (config_.scan) fail(config_.model, ": scans cannot be shared between processes, expected MHLA");
  share_ = share;
}

torch::Tensor DitImpl::denoise(const torch::Tensor& x, const torch::Tensor& t, const Conditioning& condition) {
  return forward(x, t, condition.labels);
}

std::int64_t DitImpl::null_class() const {
  if (!config_.has_null_class())
    fail(config_.model, ": the model has no null class (label_dropout is 0), expected one for guidance");
  return config_.classes;
}

Conditioning DitImpl::unconditional(const Conditioning& condition) const {
  return {torch::full_like(condition.labels, null_class()), {}, {}};
}

bool DitImpl::can_be_recorded() const {  // not scans, whose order is looked up on the host
  return config_.family == "dit" &&
         (config_.attention == "mhla" || config_.attention == "linear" || config_.attention == "softmax");
}

void DitImpl::constrain() {
  for (const AttentionLayer& layer : layers_) layer.attention->constrain();
}

std::vector<torch::Tensor> DitImpl::attention_inputs(const torch::Tensor& x, const torch::Tensor& t,
                                                     const torch::Tensor& labels) {
  const torch::NoGradGuard no_gradient;
  for (DitBlock& block : blocks_) block->keep_attention_input(true);
  const auto stop = [&] {
    for (DitBlock& block : blocks_) block->keep_attention_input(false);
  };
  try {
    forward(x, t, labels);
  } catch (...) {
    stop();
    throw;
  }
  stop();
  std::vector<torch::Tensor> seen;
  for (DitBlock& block : blocks_) seen.push_back(block->attention_input());
  return seen;
}

}  // namespace mhla
