// A Wan transformer with another attention: softmax to MHLA or linear attention and back, all layers or some.
#include "mhla/core/error.h"
#include "mhla/models/resampled.h"
#include "mhla/models/wan/wan.h"

namespace mhla {
namespace {

constexpr double kOpenGate = 1.2784645427610738;  // silu of it is 1

bool ends_in(const std::string& name, const char* tail) { return name.ends_with(tail); }

// What may differ between two configurations of with_attention().
WanConfig with_attention_of(WanConfig c, const WanConfig& other) {
  c.attention = other.attention, c.layers = other.layers, c.blocks = other.blocks, c.model = other.model;
  c.features = other.features, c.normalizer = other.normalizer, c.normalizer_eps = other.normalizer_eps;
  c.gate = other.gate, c.lepe = other.lepe, c.mix_init = other.mix_init, c.mix_sigma = other.mix_sigma;
  c.official = other.official, c.mix_range = other.mix_range, c.learn_mix = other.learn_mix;
  return c;
}

Layout block_layout(const std::array<std::int64_t, 3>& blocks) {
  return Layout::grid3d({blocks[0], blocks[1], blocks[2]}, {blocks[0], blocks[1], blocks[2]});
}

}  // namespace

Wan with_attention(const WanImpl& model, const WanConfig& config) {
  const WanConfig& from = model.config();
  if (with_attention_of(config, from) != from)
    fail("with_attention: config differs from the model's in more than its attention");
  const torch::NoGradGuard no_gradient;
  Wan other(config);
  const torch::Tensor like = model.parameters()[0];
  other->to(like.device(), like.scalar_type());
  const Weights given = weights_of(model);
  Weights state;
  for (const auto& [name, value] : weights_of(*other)) {
    const auto found = given.find(name);
    if (found != given.end()) {
      const bool other_grid = ends_in(name, ".self_attn.mix") && from.blocks != config.blocks;
      state[name] = other_grid ? resampled_mix(found->second.to(torch::kFloat), block_layout(from.blocks),
                                               block_layout(config.blocks))
                               : found->second;
    } else if (ends_in(name, ".self_attn.g.weight") || name.find(".self_attn.lepe.") != std::string::npos) {
      state[name] = torch::zeros_like(value);
    } else if (ends_in(name, ".self_attn.g.bias")) {
      state[name] = torch::full_like(value, kOpenGate);
    } else {
      state[name] = value;  // mixing matrices and g_norm as they start
    }
  }
  copy_weights(weights_of(*other), state, "with_attention");
  other->train(model.is_training());
  return other;
}

}  // namespace mhla
