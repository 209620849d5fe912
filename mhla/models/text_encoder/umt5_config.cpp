#include "mhla/models/text_encoder/umt5_config.h"

#include <algorithm>

#include "mhla/core/labelled.h"
#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"

namespace mhla {

void check(const Umt5Config& c) {
  const auto within = [](const char* field, std::int64_t value, const Limit& limit) {
    expect_within("config", field, value, limit);
  };
  within("vocab_size", c.vocab_size, limits::kVocab), within("d_model", c.d_model, limits::kDim);
  within("d_kv", c.d_kv, limits::kHeadSize), within("d_ff", c.d_ff, limits::kMlp);
  within("num_layers", c.num_layers, limits::kLayers), within("num_heads", c.num_heads, limits::kHeads);
  if (c.relative_attention_num_buckets < 4 || c.relative_attention_num_buckets > 65536 ||
      c.relative_attention_num_buckets % 4 != 0)
    fail("config: relative_attention_num_buckets is ", c.relative_attention_num_buckets,
         ", expected a multiple of 4 up to 65536");
  if (c.relative_attention_max_distance <= c.relative_attention_num_buckets / 4)
    fail("config: relative_attention_max_distance is ", c.relative_attention_max_distance, ", expected more than ",
         c.relative_attention_num_buckets / 4);
  if (!(c.layer_norm_epsilon > 0.0))
    fail("config: layer_norm_epsilon is ", c.layer_norm_epsilon, ", expected a positive number");
}

Umt5Config parse_umt5_config(const JsonValue& object, const std::string& label) {
  return labelled(label, [&] {
    for (const auto& [key, expected] :
         {std::pair("model_type", "umt5"), std::pair("feed_forward_proj", "gated-gelu")}) {
      const JsonValue* value = object.find(key);
      if (value != nullptr && !value->is_null() && value->as_string() != expected)
        fail("'", key, "' is ", value->as_string(), ", expected ", expected);
    }
    const std::vector<std::string> names = field_names<Umt5Config>();
    JsonValue own = JsonValue::object();
    for (const JsonValue::Member& member : object.members())
      if (std::find(names.begin(), names.end(), member.key) != names.end() && !member.value.is_null())
        own.set(member.key, member.value);
    Umt5Config c;
    fields_from_json(c, own, label);
    check(c);
    return c;
  });
}

Umt5Config read_umt5_config(const std::filesystem::path& path) {
  return parse_umt5_config(read_json_object(path), path.string());
}

JsonValue umt5_json(const Umt5Config& config) {
  JsonValue object = fields_to_json(config);
  object.set("architectures", JsonValue::array({"UMT5EncoderModel"})).set("model_type", "umt5");
  return object.set("feed_forward_proj", "gated-gelu").set("is_encoder_decoder", false);
}

ModelSize size_of(const Umt5Config& c, std::int64_t tokens) {
  const auto dim = static_cast<double>(c.d_model), inner = static_cast<double>(c.num_heads * c.d_kv),
             width = static_cast<double>(c.d_ff), depth = static_cast<double>(c.num_layers),
             heads = static_cast<double>(c.num_heads), T = static_cast<double>(tokens);
  ModelSize size;
  size.parameters = static_cast<double>(c.vocab_size) * dim + dim +
                    depth * (4 * dim * inner + 3 * dim * width + 2 * dim +
                             static_cast<double>(c.relative_attention_num_buckets) * heads);
  size.passing = T * (2 * dim + std::max(3 * inner, 3 * width)) + 2 * heads * T * T;
  size.kept = depth * (T * (6 * dim + 4 * inner + 3 * width) + 2 * heads * T * T);
  return size;
}

}  // namespace mhla
