#include "mhla/models/text_encoder/gemma2_config.h"

#include <algorithm>

#include "mhla/core/labelled.h"
#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"

namespace mhla {
namespace {

constexpr const char* kType = "gemma2";

void expect_text(const JsonValue& object, const char* key, const char* expected) {
  const JsonValue* value = object.find(key);
  if (value != nullptr && !value->is_null() && value->as_string() != expected)
    fail("'", key, "' is ", value->as_string(), ", expected ", expected);
}

}  // namespace

void check(const Gemma2Config& c) {
  const auto within = [](const char* field, std::int64_t value, const Limit& limit) {
    expect_within("config", field, value, limit);
  };
  within("vocab_size", c.vocab_size, limits::kVocab), within("hidden_size", c.hidden_size, limits::kDim);
  within("intermediate_size", c.intermediate_size, limits::kMlp);
  within("num_hidden_layers", c.num_hidden_layers, limits::kLayers);
  within("num_attention_heads", c.num_attention_heads, limits::kHeads);
  within("num_key_value_heads", c.num_key_value_heads, limits::kHeads);
  within("head_dim", c.head_dim, limits::kHeadSize), within("sliding_window", c.sliding_window, limits::kContext);
  if (c.num_attention_heads % c.num_key_value_heads != 0)
    fail("config: num_key_value_heads is ", c.num_key_value_heads,
         ", expected a divisor of num_attention_heads = ", c.num_attention_heads);
  if (c.head_dim % 2 != 0) fail("config: head_dim is ", c.head_dim, ", expected an even number");
  const auto expect_positive = [](const char* field, double value) {
    if (!(value > 0.0)) fail("config: ", field, " is ", value, ", expected a positive number");
  };
  expect_positive("query_pre_attn_scalar", c.query_pre_attn_scalar);
  expect_positive("attn_logit_softcapping", c.attn_logit_softcapping.value_or(1.0));
  expect_positive("rms_norm_eps", c.rms_norm_eps), expect_positive("rope_theta", c.rope_theta);
  if (!c.layer_types.empty() && static_cast<std::int64_t>(c.layer_types.size()) != c.num_hidden_layers)
    fail("config: layer_types has ", c.layer_types.size(),
         " items, expected num_hidden_layers = ", c.num_hidden_layers);
  for (const std::string& type : c.layer_types)
    if (type != "sliding_attention" && type != "full_attention")
      fail("config: layer_types has ", type, ", expected sliding_attention or full_attention");
}

Gemma2Config parse_gemma2_config(const JsonValue& object, const std::string& label) {
  return labelled(label, [&] {
    expect_text(object, "model_type", kType);
    expect_text(object, "hidden_activation", "gelu_pytorch_tanh");
    if (const JsonValue* bias = object.find("attention_bias"); bias != nullptr && bias->as_bool())
      fail("'attention_bias' is true, expected false");
    const std::vector<std::string> names = field_names<Gemma2Config>();
    JsonValue own = JsonValue::object();
    for (const JsonValue::Member& member : object.members())
      if (std::find(names.begin(), names.end(), member.key) != names.end() &&
          !(member.value.is_null() && member.key != "attn_logit_softcapping"))
        own.set(member.key, member.value);
    if (const JsonValue* rope = object.find("rope_parameters"); rope != nullptr && rope->is_object()) {
      expect_text(*rope, "rope_type", "default");
      if (const JsonValue* theta = rope->find("rope_theta"); theta != nullptr) own.set("rope_theta", *theta);
    }
    Gemma2Config c;
    fields_from_json(c, own, label);
    check(c);
    return c;
  });
}

Gemma2Config read_gemma2_config(const std::filesystem::path& path) {
  return parse_gemma2_config(read_json_object(path), path.string());
}

JsonValue gemma2_json(const Gemma2Config& config) {
  JsonValue object = JsonValue::object();
  object.set("architectures", JsonValue::array({"Gemma2Model"})).set("model_type", kType);
  object.set("hidden_activation", "gelu_pytorch_tanh").set("attention_bias", false);
  const JsonValue own = fields_to_json(config);
  for (const JsonValue::Member& member : own.members())
    if (member.key != "layer_types" || !config.layer_types.empty()) object.set(member.key, member.value);
  return object;
}

ModelSize size_of(const Gemma2Config& c, std::int64_t tokens) {
  const auto dim = static_cast<double>(c.hidden_size), width = static_cast<double>(c.intermediate_size),
             head = static_cast<double>(c.head_dim), heads = static_cast<double>(c.num_attention_heads),
             kv = static_cast<double>(c.num_key_value_heads), count = static_cast<double>(tokens);
  const double block = 2 * dim * heads * head + 2 * dim * kv * head + 3 * dim * width + 4 * dim;
  ModelSize size;
  size.parameters = static_cast<double>(c.vocab_size) * dim + static_cast<double>(c.num_hidden_layers) * block + dim;
  const double inside = std::max(3 * width, (heads + 2 * kv) * head + 2 * heads * count);  // of a token
  size.kept = static_cast<double>(c.num_hidden_layers) * count * (4 * dim + inside);
  size.passing = count * (2 * dim + inside);
  return size;
}

}  // namespace mhla
