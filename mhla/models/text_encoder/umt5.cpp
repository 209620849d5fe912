#include "mhla/models/text_encoder/umt5.h"

#include <cmath>
#include <limits>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/models/published_names.h"
#include "mhla/models/text_encoder/encoder_parts.h"
#include "mhla/models/weights_folder.h"
#include "mhla/ops/ops.h"

namespace mhla {
namespace {

constexpr const char* kUmt5Entry = "Umt5";

torch::Tensor umt5_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps) {
  const torch::Tensor wide = x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
  const torch::Tensor scale = torch::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return (wide * scale * weight.to(wide.scalar_type())).to(x.scalar_type());
}

// Ours are those of transformers without "encoder.", and `bias` for the table of distances.
std::string transformers_name(const std::string& ours) {
  if (ours == "shared.weight") return ours;
  return "encoder." + replaced(ours, ".bias.weight", ".relative_attention_bias.weight");
}

std::string wan_text_name(const std::string& ours) {
  if (ours == "shared.weight") return "token_embedding.weight";
  if (ours == "final_layer_norm.weight") return "norm.weight";
  std::string name = replaced(ours, "block.", "blocks.");
  for (const auto& [own, other] :
       {std::pair(".layer.0.SelfAttention.bias.", ".pos_embedding.embedding."),
        std::pair(".layer.0.SelfAttention.", ".attn."), std::pair(".layer.0.layer_norm.", ".norm1."),
        std::pair(".layer.1.layer_norm.", ".norm2."), std::pair(".layer.1.DenseReluDense.wi_0.", ".ffn.gate.0."),
        std::pair(".layer.1.DenseReluDense.wi_1.", ".ffn.fc1."), std::pair(".layer.1.DenseReluDense.wo.", ".ffn.fc2.")})
    name = replaced(name, own, other);
  return name;
}

PublishedNames umt5_names(const Weights& ours, Umt5Names names) {
  return renamed(ours, names == Umt5Names::kWan ? wan_text_name : transformers_name);
}

}  // namespace

class Umt5LayerImpl : public torch::nn::Module {
 public:
  Umt5LayerImpl(const Umt5Config& c, torch::ScalarType dtype) : config_(c) {
    const std::int64_t dim = c.d_model, inner = c.num_heads * c.d_kv;
    const auto parts = register_module("layer", std::make_shared<torch::nn::Module>());
    const auto first = parts->register_module("0", std::make_shared<torch::nn::Module>());
    const auto second = parts->register_module("1", std::make_shared<torch::nn::Module>());
    const auto attention = first->register_module("SelfAttention", std::make_shared<torch::nn::Module>());
    q_ = add_zero_weight(*attention, "q", {inner, dim}, dtype),
    k_ = add_zero_weight(*attention, "k", {inner, dim}, dtype);
    v_ = add_zero_weight(*attention, "v", {inner, dim}, dtype),
    o_ = add_zero_weight(*attention, "o", {dim, inner}, dtype);
    bias_ = add_zero_weight(*attention, "bias", {c.relative_attention_num_buckets, c.num_heads}, dtype);
    norm1_ = add_zero_weight(*first, "layer_norm", {dim}, dtype);
    const auto mlp = second->register_module("DenseReluDense", std::make_shared<torch::nn::Module>());
    gate_ = add_zero_weight(*mlp, "wi_0", {c.d_ff, dim}, dtype),
    up_ = add_zero_weight(*mlp, "wi_1", {c.d_ff, dim}, dtype);
    down_ = add_zero_weight(*mlp, "wo", {dim, c.d_ff}, dtype);
    norm2_ = add_zero_weight(*second, "layer_norm", {dim}, dtype);
  }

  // `buckets` [T, T]; `hidden` [B, 1, 1, T], true for padding, or undefined.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& buckets, const torch::Tensor& hidden) {
    const double eps = config_.layer_norm_epsilon;
    x = x + attend(umt5_norm(x, norm1_, eps), buckets, hidden);
    const torch::Tensor y = umt5_norm(x, norm2_, eps);
    return x + narrow_product(ops::tanh_gelu(narrow_product(y, gate_)) * narrow_product(y, up_), down_);
  }

 private:
  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& buckets, const torch::Tensor& hidden) {
    const auto heads = [&](const torch::Tensor& weight) {  // [B, H, T, D]
      return narrow_product(x, weight).unflatten(-1, {config_.num_heads, config_.d_kv}).transpose(1, 2);
    };
    const torch::Tensor bias = torch::embedding(bias_, buckets).permute({2, 0, 1});  // [H, T, T]
    torch::Tensor scores = torch::matmul(heads(q_), heads(k_).transpose(-1, -2));
    scores = (scores.scalar_type() == torch::kDouble ? scores : scores.to(torch::kFloat)) + bias;
    if (hidden.defined()) scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
    const torch::Tensor out = torch::matmul(scores.softmax(-1).to(x.scalar_type()), heads(v_));
    return narrow_product(out.transpose(1, 2).flatten(-2), o_);
  }

  Umt5Config config_;
  torch::Tensor q_, k_, v_, o_, bias_, norm1_, gate_, up_, down_, norm2_;
};

torch::Tensor umt5_buckets(const torch::Tensor& distance, std::int64_t buckets, std::int64_t max_distance) {
  const std::int64_t half = buckets / 2, exact = half / 2;
  const torch::Tensor behind = (distance > 0).to(torch::kLong) * half, away = distance.abs();
  // f32, as published: the whole part depends on the last bit.
  const torch::Tensor grown = torch::log(away.clamp_min(1).to(torch::kFloat) / static_cast<double>(exact)) /
                              std::log(static_cast<double>(max_distance) / static_cast<double>(exact)) *
                              static_cast<double>(half - exact);
  const torch::Tensor far = (grown.to(torch::kLong) + exact).clamp_max(half - 1);
  return behind + torch::where(away < exact, away, far);
}

Umt5Impl::Umt5Impl(const Umt5Config& config, torch::ScalarType dtype) : config_(config) {
  check(config_);
  table_ = add_zero_weight(*this, "shared", {config.vocab_size, config.d_model}, dtype);
  const auto blocks = register_module("block", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < config.num_layers; ++i)
    layers_.push_back(blocks->register_module(std::to_string(i), std::make_shared<Umt5LayerImpl>(config, dtype)));
  norm_ = add_zero_weight(*this, "final_layer_norm", {config.d_model}, dtype);
}

torch::Tensor Umt5Impl::forward(const torch::Tensor& ids, const torch::Tensor& mask) {
  if (ids.dim() != 2 || (mask.defined() && mask.sizes() != ids.sizes()))
    fail(kUmt5Entry, ": ids have shape ", c10::str(ids.sizes()), " and the mask ",
         mask.defined() ? c10::str(mask.sizes()) : "none", ", expected [B, T] of both");
  if (ids.is_cpu() && ids.numel() > 0) {
    const auto least = ids.min().item<std::int64_t>(), most = ids.max().item<std::int64_t>();
    if (least < 0 || most >= config_.vocab_size)
      fail(kUmt5Entry, ": a token is ", least < 0 ? least : most, ", expected 0 to ", config_.vocab_size - 1);
  }
  const torch::Tensor places = torch::arange(ids.size(1), ids.options().dtype(torch::kLong));
  const torch::Tensor buckets =
      umt5_buckets(places.unsqueeze(0) - places.unsqueeze(1), config_.relative_attention_num_buckets,
                   config_.relative_attention_max_distance);
  torch::Tensor hidden;
  if (mask.defined()) {
    const torch::Tensor seen = mask != 0;  // a text without a single token sees all of its padding
    hidden = seen.logical_or(seen.any(1, /*keepdim=*/true).logical_not()).logical_not().unsqueeze(1).unsqueeze(1);
  }
  torch::Tensor x = torch::embedding(table_, ids);
  if (x.is_cpu() && x.scalar_type() != torch::kDouble) x = x.to(torch::kFloat);
  for (const auto& layer : layers_) x = layer->forward(x, buckets, hidden);
  return umt5_norm(x, norm_, config_.layer_norm_epsilon);
}

Weights to_published(const Umt5Impl& /*model*/, const Weights& ours, Umt5Names names) {
  return to_published(umt5_names(ours, names), ours);
}

void load_published(Umt5Impl& model, const Weights& published) {
  constexpr const char* kEntry = "load_published";
  Weights file = published;
  file.erase("encoder.embed_tokens.weight");
  const Weights own = weights_of(model);
  const std::vector<PublishedNames> lists{umt5_names(own, Umt5Names::kTransformers), umt5_names(own, Umt5Names::kWan)};
  copy_weights(own, from_published(nearest_names(lists, file), own, file, kEntry), kEntry);
}

Umt5 load_umt5(const std::filesystem::path& folder, torch::ScalarType dtype) {
  Umt5 model(read_umt5_config(folder / "config.json"), dtype);
  labelled(folder.string(), [&] { load_published(*model, mapped_weights(folder)); });
  model->eval();
  return model;
}

void save_umt5(const Umt5Impl& model, const std::filesystem::path& folder, Umt5Names names, double shard_bytes) {
  OutputFolder place(folder);
  write_weights_folder(place, "model", to_published(model, weights_of(model), names), shard_bytes);
  write_file(place.claim("config.json"), write_json(umt5_json(model.config()), 2) + "\n");
  place.keep();
}

}  // namespace mhla
