#include "mhla/models/text_encoder/gemma2.h"

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

constexpr const char* kGemma2Entry = "Gemma2";

torch::Tensor normed(const torch::Tensor& x, const torch::Tensor& weight, double eps) {
  const torch::Tensor wide = x.to(torch::kFloat);
  const torch::Tensor scale = torch::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return (wide * scale * (weight.to(torch::kFloat) + 1)).to(x.scalar_type());
}

}  // namespace

class Gemma2LayerImpl : public torch::nn::Module {
 public:
  Gemma2LayerImpl(const Gemma2Config& c, torch::ScalarType dtype) : config_(c) {
    const std::int64_t dim = c.hidden_size, width = c.intermediate_size, query = c.num_attention_heads * c.head_dim,
                       key = c.num_key_value_heads * c.head_dim;
    norms_ = {add_zero_weight(*this, "input_layernorm", {dim}, dtype),
              add_zero_weight(*this, "post_attention_layernorm", {dim}, dtype),
              add_zero_weight(*this, "pre_feedforward_layernorm", {dim}, dtype),
              add_zero_weight(*this, "post_feedforward_layernorm", {dim}, dtype)};
    const auto attention = register_module("self_attn", std::make_shared<torch::nn::Module>());
    q_ = add_zero_weight(*attention, "q_proj", {query, dim}, dtype),
    k_ = add_zero_weight(*attention, "k_proj", {key, dim}, dtype);
    v_ = add_zero_weight(*attention, "v_proj", {key, dim}, dtype),
    o_ = add_zero_weight(*attention, "o_proj", {dim, query}, dtype);
    const auto mlp = register_module("mlp", std::make_shared<torch::nn::Module>());
    gate_ = add_zero_weight(*mlp, "gate_proj", {width, dim}, dtype),
    up_ = add_zero_weight(*mlp, "up_proj", {width, dim}, dtype);
    down_ = add_zero_weight(*mlp, "down_proj", {dim, width}, dtype);
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& hidden, const RopeTable& table) {
    const double eps = config_.rms_norm_eps;
    x = x + normed(attend(normed(x, norms_[0], eps), hidden, table), norms_[1], eps);
    const torch::Tensor y = normed(x, norms_[2], eps);
    const torch::Tensor inner = ops::tanh_gelu(narrow_product(y, gate_)) * narrow_product(y, up_);
    return x + normed(narrow_product(inner, down_), norms_[3], eps);
  }

 private:
  torch::Tensor attend(const torch::Tensor& x, const torch::Tensor& hidden, const RopeTable& table) {
    const std::int64_t group = config_.num_attention_heads / config_.num_key_value_heads;
    const auto headed = [&](const torch::Tensor& weight, std::int64_t heads) {
      return narrow_product(x, weight).unflatten(-1, {heads, config_.head_dim});  // [B, T, H, D]
    };
    const auto [q, k] =
        ops::rope(headed(q_, config_.num_attention_heads), headed(k_, config_.num_key_value_heads), table);
    const auto shared = [&](const torch::Tensor& y) { return y.repeat_interleave(group, 2).transpose(1, 2); };
    torch::Tensor scores = torch::matmul(q.transpose(1, 2), shared(k).transpose(-1, -2)) /
                           std::sqrt(config_.query_pre_attn_scalar);  // [B, H, T, T]
    if (config_.attn_logit_softcapping) {
      const double cap = *config_.attn_logit_softcapping;
      scores = torch::tanh(scores / cap) * cap;
    }
    // The lowest number, not infinity: a row that sees nothing, which is padding, stays finite.
    scores = scores.to(torch::kFloat).masked_fill(hidden, static_cast<double>(std::numeric_limits<float>::lowest()));
    const torch::Tensor v = shared(headed(v_, config_.num_key_value_heads));
    return narrow_product(torch::matmul(scores.softmax(-1).to(x.scalar_type()), v).transpose(1, 2).flatten(-2), o_);
  }

  Gemma2Config config_;
  std::vector<torch::Tensor> norms_;
  torch::Tensor q_, k_, v_, o_, gate_, up_, down_;
};

Gemma2Impl::Gemma2Impl(const Gemma2Config& c, torch::ScalarType dtype)
    : config_(c), rope_(std::make_shared<RopeCache>(c.head_dim, c.rope_theta)) {
  check(c);
  table_ = add_zero_weight(*this, "embed_tokens", {c.vocab_size, c.hidden_size}, dtype);
  const auto layers = register_module("layers", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < c.num_hidden_layers; ++i)
    layers_.push_back(layers->register_module(std::to_string(i), std::make_shared<Gemma2LayerImpl>(c, dtype)));
  norm_ = add_zero_weight(*this, "norm", {c.hidden_size}, dtype);
}

torch::Tensor Gemma2Impl::forward(const torch::Tensor& ids, const torch::Tensor& mask,
                                  std::vector<torch::Tensor>* maybe_states) {
  if (ids.dim() != 2 || ids.sizes() != mask.sizes() || ids.size(1) < 1)
    fail(kGemma2Entry, ": ids and mask have shapes ", c10::str(ids.sizes()), " and ", c10::str(mask.sizes()),
         ", expected [B, T] for both");
  if (ids.numel() > 0) {
    const auto least = ids.min().item<std::int64_t>(), most = ids.max().item<std::int64_t>();
    if (least < 0 || most >= config_.vocab_size)
      fail(kGemma2Entry, ": ids from ", least, " to ", most, ", expected 0 to ", config_.vocab_size - 1);
  }
  const std::int64_t T = ids.size(1);
  torch::Tensor x = torch::embedding(table_, ids);
  if (!x.is_cuda()) x = x.to(torch::kFloat);
  x = x * std::sqrt(static_cast<double>(config_.hidden_size));
  const torch::Tensor places = torch::arange(T, ids.options().dtype(torch::kLong));
  const torch::Tensor ago = places.unsqueeze(1) - places;  // [T, T]: query minus key
  const torch::Tensor padding = (mask == 0).view({-1, 1, 1, T});
  const torch::Tensor full = (ago < 0).logical_or(padding);
  const torch::Tensor sliding =
      T <= config_.sliding_window ? full : full.logical_or(ago >= config_.sliding_window);  // [B, 1, T, T]
  const RopeTable table = rope_->at({}, T, x);
  if (maybe_states != nullptr) maybe_states->assign(1, x);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i]->forward(x, config_.is_sliding(i) ? sliding : full, table);
    if (maybe_states != nullptr) maybe_states->push_back(x);
  }
  return normed(x, norm_, config_.rms_norm_eps);
}

SelectedStates select_states(const torch::Tensor& states, const torch::Tensor& mask, std::int64_t count) {
  const std::int64_t T = states.size(1);
  if (count < 2 || count > T) fail("select_states: ", count, " positions of ", T, " tokens, expected 2 to ", T);
  const auto pick = [&](const torch::Tensor& x) {
    return torch::cat({x.narrow(1, 0, 1), x.narrow(1, T - count + 1, count - 1)}, 1);
  };
  return {pick(states), pick(mask)};
}

void load_published(Gemma2Impl& model, const Weights& published) {
  Weights file;
  for (const auto& [name, value] : published) {
    if (name == "lm_head.weight") continue;  // the table once more
    std::string bare = name;
    replace_head(bare, "model.", "");
    if (!file.emplace(bare, value).second) fail("load_published: ", bare, " is there with and without 'model.'");
  }
  const Weights own = weights_of(model);
  const PublishedNames names = renamed(own, [](const std::string& name) { return name; });
  copy_weights(own, from_published(names, own, file, "load_published"), "load_published");
}

Gemma2 load_gemma2(const std::filesystem::path& folder, torch::ScalarType dtype) {
  Gemma2 model(read_gemma2_config(folder / "config.json"), dtype);
  labelled(folder.string(), [&] { load_published(*model, mapped_weights(folder)); });
  model->eval();
  return model;
}

void save_gemma2(const Gemma2Impl& model, const std::filesystem::path& folder, double shard_bytes) {
  OutputFolder place(folder);
  write_weights_folder(place, "model", weights_of(model), shard_bytes);
  write_file(place.claim("config.json"), write_json(gemma2_json(model.config()), 2) + "\n");
  place.keep();
}

}  // namespace mhla
