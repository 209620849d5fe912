#include "mhla/models/clip/clip.h"

#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/core/limits.h"

namespace mhla {
namespace {

// A module whose children have dotted names: "vision_model.embeddings". Registers each part where it is missing.
torch::nn::Module& child_of(torch::nn::Module& root, const std::string& path) {
  torch::nn::Module* at = &root;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string name = path.substr(begin, end - begin);
    const auto children = at->named_children();
    at = children.contains(name) ? children[name].get()
                                 : at->register_module(name, std::make_shared<torch::nn::Module>()).get();
    begin = end + 1;
  }
  return *at;
}

torch::nn::Linear linear(std::int64_t in, std::int64_t out, bool bias = true) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(bias));
}

std::vector<ClipLayer> make_layers(torch::nn::Module& root, const std::string& path, const ClipTowerConfig& config) {
  torch::nn::Module& parent = child_of(root, path);
  std::vector<ClipLayer> layers;
  for (std::int64_t i = 0; i < config.layers; ++i)
    layers.push_back(parent.register_module(std::to_string(i), ClipLayer(config)));
  return layers;
}

void check_tower(const ClipTowerConfig& tower) {
  expect_within("clip", "dim", tower.dim, limits::kDim);
  expect_within("clip", "layers", tower.layers, limits::kLayers);
  expect_within("clip", "heads", tower.heads, limits::kHeads);
  expect_within("clip", "mlp", tower.mlp, limits::kMlp);
  if (tower.dim % tower.heads != 0)
    fail("clip: dim is ", tower.dim, ", expected a multiple of the ", tower.heads, " heads");
}

}  // namespace

void ClipConfig::check() const {
  check_tower(image_tower);
  check_tower(text_tower);
  expect_within("clip", "image", image, limits::kImage);
  expect_within("clip", "patch", patch, limits::kPatch);
  expect_within("clip", "context", context, limits::kContext);
  expect_within("clip", "vocab", vocab, limits::kVocab);
  expect_within("clip", "projection", projection, limits::kDim);
  if (image % patch != 0) fail("clip: image is ", image, ", expected a multiple of the patch of ", patch);
}

ClipLayerImpl::ClipLayerImpl(const ClipTowerConfig& config) : config_(config) {
  const std::int64_t dim = config.dim;
  norm1_ = register_module("layer_norm1", TokenNorm(dim, false, config.eps));
  norm2_ = register_module("layer_norm2", TokenNorm(dim, false, config.eps));
  torch::nn::Module& attention = child_of(*this, "self_attn");
  q_ = attention.register_module("q_proj", linear(dim, dim));
  k_ = attention.register_module("k_proj", linear(dim, dim));
  v_ = attention.register_module("v_proj", linear(dim, dim));
  out_ = attention.register_module("out_proj", linear(dim, dim));
  torch::nn::Module& mlp = child_of(*this, "mlp");
  fc1_ = mlp.register_module("fc1", linear(dim, config.mlp));
  fc2_ = mlp.register_module("fc2", linear(config.mlp, dim));
}

torch::Tensor ClipLayerImpl::forward(torch::Tensor x, const torch::Tensor& maybe_mask) {
  const auto heads = [&](const torch::Tensor& t) { return t.unflatten(-1, {config_.heads, -1}).transpose(1, 2); };
  const torch::Tensor y = norm1_(x);
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.dim / config_.heads));
  torch::Tensor scores = torch::matmul(heads(q_(y)) * scale, heads(k_(y)).transpose(-1, -2));  // [B, H, N, N]
  if (maybe_mask.defined()) scores = scores + maybe_mask;
  x = x + out_(torch::matmul(scores.softmax(-1), heads(v_(y))).transpose(1, 2).flatten(2));
  const torch::Tensor inner = fc1_(norm2_(x));
  return x + fc2_(config_.quick_gelu ? inner * torch::sigmoid(1.702 * inner) : torch::gelu(inner));
}

ClipImpl::ClipImpl(const ClipConfig& config) : config_(config) {
  config.check();
  const ClipTowerConfig& image = config.image_tower;
  const ClipTowerConfig& text = config.text_tower;
  const std::int64_t side = config.image / config.patch;
  torch::nn::Module& vision = child_of(*this, "vision_model");
  torch::nn::Module& picture = child_of(vision, "embeddings");
  class_embedding_ = picture.register_parameter("class_embedding", torch::zeros({image.dim}));
  patches_ = picture.register_module(
      "patch_embedding",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, image.dim, config.patch).stride(config.patch).bias(false)));
  image_positions_ = picture.register_module("position_embedding", torch::nn::Embedding(side * side + 1, image.dim));
  pre_norm_ = vision.register_module("pre_layrnorm", TokenNorm(image.dim, false, image.eps));  // as it is published
  image_layers_ = make_layers(vision, "encoder.layers", image);
  post_norm_ = vision.register_module("post_layernorm", TokenNorm(image.dim, false, image.eps));
  torch::nn::Module& language = child_of(*this, "text_model");
  torch::nn::Module& words = child_of(language, "embeddings");
  tokens_ = words.register_module("token_embedding", torch::nn::Embedding(config.vocab, text.dim));
  text_positions_ = words.register_module("position_embedding", torch::nn::Embedding(config.context, text.dim));
  text_layers_ = make_layers(language, "encoder.layers", text);
  final_norm_ = language.register_module("final_layer_norm", TokenNorm(text.dim, false, text.eps));
  image_projection_ = register_module("visual_projection", linear(image.dim, config.projection, false));
  text_projection_ = register_module("text_projection", linear(text.dim, config.projection, false));
  logit_scale_ = register_parameter("logit_scale", torch::full({1}, std::log(1.0 / 0.07)));
}

torch::Tensor ClipImpl::embed_images(const torch::Tensor& pixels) {
  if (pixels.dim() != 4 || pixels.size(1) != 3 || pixels.size(2) != config_.image || pixels.size(3) != config_.image)
    fail("clip: images have shape ", shape_text(pixels.sizes().vec()), ", expected [B, 3, ", config_.image, ", ",
         config_.image, "]");
  const torch::Tensor tokens = patches_(pixels).flatten(2).transpose(1, 2);  // [B, N, C]
  torch::Tensor x = torch::cat({class_embedding_.expand({pixels.size(0), 1, -1}), tokens}, 1);
  x = pre_norm_(x + image_positions_->weight);
  for (ClipLayer& layer : image_layers_) x = layer->forward(x, {});
  return image_projection_(post_norm_(x.select(1, 0)));
}

torch::Tensor ClipImpl::embed_texts(const torch::Tensor& ids) {
  if (ids.dim() != 2 || ids.size(1) < 1 || ids.size(1) > config_.context || ids.scalar_type() != torch::kLong)
    fail("clip: ids have shape ", shape_text(ids.sizes().vec()), ", expected i64 [B, 1 to ", config_.context, "]");
  if (ids.numel() > 0 && (ids.min().item<std::int64_t>() < 0 || ids.max().item<std::int64_t>() >= config_.vocab))
    fail("clip: ids from ", ids.min().item<std::int64_t>(), " to ", ids.max().item<std::int64_t>(), ", expected 0 to ",
         config_.vocab - 1);
  const std::int64_t N = ids.size(1);
  torch::Tensor x = tokens_(ids) + text_positions_->weight.narrow(0, 0, N);
  const torch::Tensor causal = torch::full({N, N}, -std::numeric_limits<float>::infinity(), x.options()).triu(1);
  for (ClipLayer& layer : text_layers_) x = layer->forward(x, causal);
  const torch::Tensor last = ids.argmax(-1);  // the end token has the largest id; of several the first
  x = x.gather(1, last.view({-1, 1, 1}).expand({-1, 1, x.size(2)})).squeeze(1);
  return text_projection_(final_norm_(x));
}

double ClipImpl::logit_scale() const { return std::exp(logit_scale_.item<double>()); }

torch::Tensor clip_pixels(const torch::Tensor& images) {
  if (images.dim() != 4 || images.size(1) != 3 || images.scalar_type() != torch::kByte)
    fail("clip: images have shape ", shape_text(images.sizes().vec()), ", expected u8 [B, 3, rows, columns]");
  const auto channels = [&](std::vector<float> values) {
    return torch::tensor(values).to(images.device()).view({1, 3, 1, 1});
  };
  return (images.to(torch::kFloat) / 255.0 - channels({0.48145466f, 0.4578275f, 0.40821073f})) /
         channels({0.26862954f, 0.26130258f, 0.27577711f});
}

torch::Tensor clip_scores(const torch::Tensor& images, const torch::Tensor& texts) {
  if (images.dim() != 2 || images.sizes() != texts.sizes())
    fail("clip_scores: images have shape ", shape_text(images.sizes().vec()), " and texts ",
         shape_text(texts.sizes().vec()), ", expected the same [B, projection]");
  return 100.0 * torch::cosine_similarity(images, texts, 1, 1e-8).clamp_min(0.0);
}

}  // namespace mhla
