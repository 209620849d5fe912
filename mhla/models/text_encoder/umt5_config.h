// What a umT5 encoder is made of. Fields have the names of transformers' config.json, which is what is read and
// written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "mhla/io/fields.h"
#include "mhla/models/model_size.h"

namespace mhla {

struct Umt5Config {  // the defaults are umT5-XXL
  std::int64_t vocab_size = 256384, d_model = 4096, d_kv = 64, d_ff = 10240, num_layers = 24, num_heads = 64;
  std::int64_t relative_attention_num_buckets = 32, relative_attention_max_distance = 128;
  double layer_norm_epsilon = 1e-6;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("vocab_size", c.vocab_size, "tokens of the vocabulary");
    visit("d_model", c.d_model, "channels");
    visit("d_kv", c.d_kv, "channels of a head");
    visit("d_ff", c.d_ff, "width of the MLP");
    visit("num_layers", c.num_layers, "blocks");
    visit("num_heads", c.num_heads, "attention heads");
    visit("relative_attention_num_buckets", c.relative_attention_num_buckets, "kinds of distances, of both directions");
    visit("relative_attention_max_distance", c.relative_attention_max_distance, "distances from here on are one kind");
    visit("layer_norm_epsilon", c.layer_norm_epsilon, "epsilon of the norms");
  }
  bool operator==(const Umt5Config&) const = default;
};

void check(const Umt5Config& config);

// Keys that do not change an encoder (decoder, cache, dtype, tokens) are passed over.
Umt5Config parse_umt5_config(const JsonValue& object, const std::string& label);
Umt5Config read_umt5_config(const std::filesystem::path& path);
JsonValue umt5_json(const Umt5Config& config);

ModelSize size_of(const Umt5Config& config, std::int64_t tokens);  // a sample is a text

}  // namespace mhla
