#include "mhla/models/inception/inception.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/models/weights_file.h"

namespace mhla {
namespace {

constexpr std::int64_t kSide = 299;
constexpr double kInceptionEps = 1e-3;
constexpr std::int64_t kSpatialChannels = 7;

using Branches = std::vector<InceptionBranchSpec>;

// The blocks in the order of the network, by the letters of the paper's figure.
Branches block_a() {
  return {{{{"branch1x1", 64}}, {}},
          {{{"branch5x5_1", 48}, {"branch5x5_2", 64, 5, 5}}, {}},
          {{{"branch3x3dbl_1", 64}, {"branch3x3dbl_2", 96, 3, 3}, {"branch3x3dbl_3", 96, 3, 3}}, {}}};
}

Branches block_b() {
  return {{{{"branch3x3", 384, 3, 3, 2, false}}, {}},
          {{{"branch3x3dbl_1", 64}, {"branch3x3dbl_2", 96, 3, 3}, {"branch3x3dbl_3", 96, 3, 3, 2, false}}, {}}};
}

Branches block_c(std::int64_t c) {
  return {{{{"branch1x1", 192}}, {}},
          {{{"branch7x7_1", c}, {"branch7x7_2", c, 1, 7}, {"branch7x7_3", 192, 7, 1}}, {}},
          {{{"branch7x7dbl_1", c},
            {"branch7x7dbl_2", c, 7, 1},
            {"branch7x7dbl_3", c, 1, 7},
            {"branch7x7dbl_4", c, 7, 1},
            {"branch7x7dbl_5", 192, 1, 7}},
           {}}};
}

Branches block_d() {
  return {{{{"branch3x3_1", 192}, {"branch3x3_2", 320, 3, 3, 2, false}}, {}},
          {{{"branch7x7x3_1", 192},
            {"branch7x7x3_2", 192, 1, 7},
            {"branch7x7x3_3", 192, 7, 1},
            {"branch7x7x3_4", 192, 3, 3, 2, false}},
           {}}};
}

Branches block_e() {
  return {{{{"branch1x1", 320}}, {}},
          {{{"branch3x3_1", 384}}, {{"branch3x3_2a", 384, 1, 3}, {"branch3x3_2b", 384, 3, 1}}},
          {{{"branch3x3dbl_1", 448}, {"branch3x3dbl_2", 384, 3, 3}},
           {{"branch3x3dbl_3a", 384, 1, 3}, {"branch3x3dbl_3b", 384, 3, 1}}}};
}

torch::Tensor halving_max_pool(const torch::Tensor& x) { return torch::max_pool2d(x, {3, 3}, {2, 2}); }

torch::Tensor mean_over_places(const torch::Tensor& x) { return x.mean({2, 3}); }

// Values at source = i * in / out and the one after it, mixed; one axis.
torch::Tensor resized_along(const torch::Tensor& x, std::int64_t axis, std::int64_t out) {
  const std::int64_t in = x.size(axis);
  const auto step = static_cast<float>(static_cast<double>(in) / static_cast<double>(out));
  const torch::Tensor place = torch::arange(out, x.options()) * step;
  const torch::Tensor low = place.to(torch::kLong), high = (low + 1).clamp_max(in - 1);
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[static_cast<std::size_t>(axis)] = out;
  const torch::Tensor at_low = x.index_select(axis, low);
  return at_low + (x.index_select(axis, high) - at_low) * (place - low.to(x.scalar_type())).view(shape);
}

}  // namespace

torch::Tensor inception_input(const torch::Tensor& images) {
  if (images.dim() != 4 || images.size(1) != 3 || images.scalar_type() != torch::kByte || images.numel() == 0)
    fail("inception: images are ", c10::toString(images.scalar_type()), " of shape ", shape_text(images.sizes().vec()),
         ", expected u8 [B, 3, rows, columns]");
  // Columns before rows, as the published code.
  const torch::Tensor x = resized_along(resized_along(images.to(torch::kFloat), 3, kSide), 2, kSide);
  return (x - 128.0) / 128.0;
}

InceptionConvImpl::InceptionConvImpl(std::int64_t in, const InceptionConvSpec& spec) {
  const std::vector<std::int64_t> kernel{spec.rows, spec.columns}, none{0, 0}, half{spec.rows / 2, spec.columns / 2};
  conv_ = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, spec.out, kernel)
                                                        .stride(spec.stride)
                                                        .padding(spec.padded ? half : none)
                                                        .bias(false)));
  bn_ = register_module("bn", BatchNorm(spec.out));
}

torch::Tensor InceptionConvImpl::forward(const torch::Tensor& x) {
  return torch::batch_norm(conv_(x), bn_->weight, bn_->bias, bn_->running_mean, bn_->running_var, /*training=*/false,
                           /*momentum=*/0.0, kInceptionEps, /*cudnn_enabled=*/true)
      .relu_();
}

InceptionBlockImpl::InceptionBlockImpl(std::int64_t in, const Branches& branches, InceptionPool pool,
                                       std::int64_t pool_out)
    : pool_(pool) {
  for (const InceptionBranchSpec& spec : branches) {
    Branch branch;
    std::int64_t width = in;
    for (const InceptionConvSpec& conv : spec.chain) {
      branch.chain.push_back(register_module(conv.name, InceptionConv(width, conv)));
      width = conv.out;
    }
    for (const InceptionConvSpec& conv : spec.fork) {
      branch.fork.push_back(register_module(conv.name, InceptionConv(width, conv)));
      out_ += conv.out;
    }
    if (spec.fork.empty()) out_ += width;
    branches_.push_back(std::move(branch));
  }
  if (pool_ != InceptionPool::kMaxHalf)
    pool_conv_ = register_module("branch_pool", InceptionConv(in, InceptionConvSpec{"branch_pool", pool_out}));
  out_ += pool_ == InceptionPool::kMaxHalf ? in : pool_out;
}

torch::Tensor InceptionBlockImpl::forward(const torch::Tensor& x, torch::Tensor* maybe_first) {
  std::vector<torch::Tensor> parts;
  for (Branch& branch : branches_) {
    torch::Tensor y = x;
    for (InceptionConv& conv : branch.chain) y = conv->forward(y);
    for (InceptionConv& conv : branch.fork) parts.push_back(conv->forward(y));
    if (branch.fork.empty()) parts.push_back(y);
  }
  if (maybe_first != nullptr) *maybe_first = parts.front();
  switch (pool_) {
    case InceptionPool::kMaxHalf: parts.push_back(halving_max_pool(x)); break;
    case InceptionPool::kMax: parts.push_back(pool_conv_->forward(torch::max_pool2d(x, {3, 3}, {1, 1}, {1, 1}))); break;
    case InceptionPool::kAverage:
      parts.push_back(pool_conv_->forward(
          torch::avg_pool2d(x, {3, 3}, {1, 1}, {1, 1}, /*ceil_mode=*/false, /*count_include_pad=*/false)));
      break;
  }
  return torch::cat(parts, 1);
}

InceptionImpl::InceptionImpl() {
  std::int64_t width = 3;
  for (const InceptionConvSpec& conv : {InceptionConvSpec{"Conv2d_1a_3x3", 32, 3, 3, 2, false},
                                        {"Conv2d_2a_3x3", 32, 3, 3, 1, false},
                                        {"Conv2d_2b_3x3", 64, 3, 3},
                                        {"Conv2d_3b_1x1", 80},
                                        {"Conv2d_4a_3x3", 192, 3, 3, 1, false}}) {
    stem_.push_back(register_module(conv.name, InceptionConv(width, conv)));
    width = conv.out;
  }
  const auto add = [&](const char* name, const Branches& branches, InceptionPool pool, std::int64_t pool_out) {
    blocks_.emplace_back(name, register_module(name, InceptionBlock(width, branches, pool, pool_out)));
    width = blocks_.back().second->out();
  };
  add("Mixed_5b", block_a(), InceptionPool::kAverage, 32);
  add("Mixed_5c", block_a(), InceptionPool::kAverage, 64);
  add("Mixed_5d", block_a(), InceptionPool::kAverage, 64);
  add("Mixed_6a", block_b(), InceptionPool::kMaxHalf, 0);
  add("Mixed_6b", block_c(128), InceptionPool::kAverage, 192);
  add("Mixed_6c", block_c(160), InceptionPool::kAverage, 192);
  add("Mixed_6d", block_c(160), InceptionPool::kAverage, 192);
  add("Mixed_6e", block_c(192), InceptionPool::kAverage, 192);
  add("Mixed_7a", block_d(), InceptionPool::kMaxHalf, 0);
  add("Mixed_7b", block_e(), InceptionPool::kAverage, 192);
  add("Mixed_7c", block_e(), InceptionPool::kMax, 192);
  fc_ = register_module("fc", torch::nn::Linear(width, 1008));
}

InceptionFeatures InceptionImpl::forward(const torch::Tensor& images) {
  InceptionFeatures out;
  torch::Tensor x = inception_input(images).to(fc_->weight.options());
  for (std::size_t i = 0; i < 3; ++i) x = stem_[i]->forward(x);
  x = halving_max_pool(x);  // [B, 64, 73, 73]
  out.f64 = mean_over_places(x);
  for (std::size_t i = 3; i < 5; ++i) x = stem_[i]->forward(x);
  x = halving_max_pool(x);  // [B, 192, 35, 35]
  out.f192 = mean_over_places(x);
  for (auto& [name, block] : blocks_) {
    torch::Tensor first;
    x = block->forward(x, &first);
    if (name == "Mixed_6d") out.spatial = first.narrow(1, 0, kSpatialChannels).permute({0, 2, 3, 1}).flatten(1);
    if (name == "Mixed_6e") out.f768 = mean_over_places(x);  // [B, 768, 17, 17]
  }
  out.f2048 = mean_over_places(x);  // [B, 2048, 8, 8]
  out.logits_unbiased = torch::matmul(out.f2048, fc_->weight.t());
  out.logits = out.logits_unbiased + fc_->bias;
  return out;
}

namespace {

Inception ready(Inception model, const Weights& weights) {
  load_state(*model, weights);
  model->eval();
  for (torch::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
  return model;
}

std::uint32_t crc32_of(const std::string& text) {
  std::uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

double uniform_of(std::uint32_t index, std::uint32_t key) {  // [0, 1)
  std::uint32_t h = 2654435761u * index + key;
  h ^= h >> 16;
  h *= 0x85ebca6bu;
  h ^= h >> 13;
  h *= 0xc2b2ae35u;
  h ^= h >> 16;
  return static_cast<double>(h) * 0x1p-32;
}

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

}  // namespace

Inception load_inception(const std::filesystem::path& path) {
  Weights weights = read_weights(path);
  for (auto it = weights.begin(); it != weights.end();)  // a count that nothing reads
    it = ends_with(it->first, ".num_batches_tracked") ? weights.erase(it) : std::next(it);
  return labelled(path.string(), [&] { return ready(Inception(), weights); });
}

Weights inception_formula_weights(const Inception& model) {
  Weights weights;
  for (const auto& [name, like] : state_of(*model)) {
    const std::uint32_t key = crc32_of(name);
    const bool around_one = ends_with(name, "running_var") || ends_with(name, "bn.weight");
    const double spread = ends_with(name, "bn.bias") || ends_with(name, "running_mean") ? 0.2
                          : name == "fc.bias"                                           ? 0.1
                          : around_one                                                  ? 0.0
                                       : std::sqrt(6.0 / static_cast<double>(like.numel() / like.size(0)));
    const torch::Tensor value = torch::empty(like.sizes(), torch::kFloat);
    auto* data = value.data_ptr<float>();
    for (std::int64_t i = 0; i < value.numel(); ++i) {
      const double u = uniform_of(static_cast<std::uint32_t>(i), key);
      data[i] = static_cast<float>(around_one ? 0.5 + u : spread * (2.0 * u - 1.0));
    }
    weights[name] = value;
  }
  return weights;
}

Inception formula_inception() {
  Inception model;
  return ready(model, inception_formula_weights(model));
}

}  // namespace mhla
