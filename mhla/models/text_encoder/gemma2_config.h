// What a Gemma-2 is made of. Fields have the names of transformers' config.json, which is what is read and written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "mhla/io/fields.h"
#include "mhla/models/model_size.h"

namespace mhla {

struct Gemma2Config {  // the defaults are Gemma-2-2b
  std::int64_t vocab_size = 256000, hidden_size = 2304, intermediate_size = 9216, num_hidden_layers = 26;
  std::int64_t num_attention_heads = 8, num_key_value_heads = 4, head_dim = 256;
  double query_pre_attn_scalar = 256;
  std::int64_t sliding_window = 4096;
  std::optional<double> attn_logit_softcapping = 50.0;
  double rms_norm_eps = 1e-6, rope_theta = 10000.0;
  std::vector<std::string> layer_types;  // sliding_attention or full_attention; empty: in turn, sliding first

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("vocab_size", c.vocab_size, "tokens of the vocabulary");
    visit("hidden_size", c.hidden_size, "channels");
    visit("intermediate_size", c.intermediate_size, "width of the MLP");
    visit("num_hidden_layers", c.num_hidden_layers, "blocks");
    visit("num_attention_heads", c.num_attention_heads, "attention heads");
    visit("num_key_value_heads", c.num_key_value_heads, "heads of keys and values");
    visit("head_dim", c.head_dim, "channels of a head");
    visit("query_pre_attn_scalar", c.query_pre_attn_scalar, "scores are divided by its root");
    visit("sliding_window", c.sliding_window, "tokens that every second layer sees");
    visit("attn_logit_softcapping", c.attn_logit_softcapping, "scores stay within this, or null");
    visit("rms_norm_eps", c.rms_norm_eps, "epsilon of the norms");
    visit("rope_theta", c.rope_theta, "base of the rotary positions");
    visit("layer_types", c.layer_types, "sliding_attention or full_attention, for every block");
  }
  [[nodiscard]] bool is_sliding(std::size_t layer) const {
    return layer_types.empty() ? layer % 2 == 0 : layer_types[layer] == "sliding_attention";
  }
  bool operator==(const Gemma2Config&) const = default;
};

void check(const Gemma2Config& config);

// Keys that do not change the hidden states (cache, dtype, tokens) are passed over.
Gemma2Config parse_gemma2_config(const JsonValue& object, const std::string& label);
Gemma2Config read_gemma2_config(const std::filesystem::path& path);
JsonValue gemma2_json(const Gemma2Config& config);

ModelSize size_of(const Gemma2Config& config, std::int64_t tokens);  // a sample is a text

}  // namespace mhla
