// The named models, and what a configuration may not be.
#include "mhla/models/lm/lm_config.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/models/transformers_config.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

constexpr std::int64_t kSoftmaxHead = 64;  // of Transformer++, whose heads are many and small

LmConfig sized(std::int64_t vocab, std::int64_t dim, std::int64_t layers, std::int64_t heads, std::int64_t mlp) {
  LmConfig c;
  c.vocab = vocab, c.dim = dim, c.layers = layers, c.heads = heads, c.mlp = mlp;
  return c;
}

struct Named {
  std::string_view name;
  LmConfig config;
};

// Head sizes of keys and values: 128 and 256 from 130 M on, 64 and 128 below. Small models have small vocabularies,
// or most of their parameters would be the table.
const std::vector<Named>& named() {
  static const std::vector<Named> kNamed = {
      {"mhla_10m", sized(8192, 256, 10, 2, 704)},
      {"mhla_30m", sized(16384, 384, 12, 3, 1152)},
      {"mhla_130m", sized(32000, 768, 15, 3, 2048)},
      {"mhla_340m", sized(32000, 1024, 24, 4, 2816)},
  };
  return kNamed;
}

template <class Names>
void expect_one_of(const char* field, std::string_view value, const Names& names) {
  std::string all;
  for (const auto& name : names) {
    if (name == value) return;
    all += str(all.empty() ? "" : ", ", name);
  }
  fail("config: ", field, " is '", value, "', expected one of ", all);
}

std::vector<std::string> causal_attentions() {
  std::vector<std::string> names;
  for (const std::string_view name : attention_names()) {
    if (has_causal_form(name)) names.emplace_back(name);
  }
  return names;
}

void expect_positive(const char* field, double value) {
  if (!(value > 0.0)) fail("config: ", field, " is ", value, ", expected a positive number");
}

// `expand` of dim, in whole channels for every head.
void expect_heads(const char* field, const LmConfig& c, double expand) {
  expect_positive(field, expand);
  const double size = expand * static_cast<double>(c.dim) / static_cast<double>(c.heads);
  if (size != std::floor(size) || size < 1.0)
    fail("config: ", field, " is ", expand, ", which gives ", c.heads, " heads of ", size,
         " channels, expected a whole number");
  if (size > static_cast<double>(limits::kHeadSize.most))
    fail("config: ", field, " is ", expand, ", which gives heads of ", size, " channels, expected at most ",
         limits::kHeadSize.most);
}

}  // namespace

std::vector<std::string> lm_names() {
  std::vector<std::string> names;
  for (const Named& entry : named()) names.emplace_back(entry.name);
  return names;
}

LmConfig lm_config(std::string_view name, std::string_view attention, bool official) {
  const auto found =
      std::find_if(named().begin(), named().end(), [&](const Named& entry) { return entry.name == name; });
  if (found == named().end()) expect_one_of("model", name, lm_names());
  LmConfig c = found->config;
  c.model = name, c.attention = attention, c.official = official;
  if (attention == "softmax") c.heads = c.dim / kSoftmaxHead;
  check(c);
  return c;
}

void check(const LmConfig& c) {
  if (c.family != "lm") fail("config: family is '", c.family, "', expected lm");
  expect_one_of("attention", c.attention, attention_names());
  if (!has_causal_form(c.attention))
    expect_one_of("attention", c.attention, causal_attentions());  // the others see the future
  if (c.official && c.attention != "mhla")
    fail("config: official is true for ", c.attention, ", expected mhla: no other code was published");
  const auto within = [](const char* field, std::int64_t value, const Limit& limit) {
    expect_within("config", field, value, limit);
  };
  within("vocab", c.vocab, limits::kVocab), within("dim", c.dim, limits::kDim);
  within("layers", c.layers, limits::kLayers), within("heads", c.heads, limits::kHeads);
  within("mlp", c.mlp, limits::kMlp), within("context", c.context, limits::kContext);
  within("chunk", c.chunk, limits::kChunk), within("short_conv", c.short_conv, limits::kTaps);
  expect_within("config", "kv_heads", c.kv_heads, limits::kHeads, 0);
  if (c.dim % c.heads != 0) fail("config: dim is ", c.dim, ", expected a multiple of heads = ", c.heads);
  if (c.kv_heads != 0 && c.heads % c.kv_heads != 0)
    fail("config: kv_heads is ", c.kv_heads, ", expected a divisor of heads = ", c.heads);
  expect_heads("expand_k", c, c.expand_k), expect_heads("expand_v", c, c.expand_v);
  expect_positive("norm_eps", c.norm_eps), expect_positive("rope_base", c.rope_base);
  expect_positive("mix_sigma", c.mix_sigma);
  parse_features(c.features);
  parse_causal_init(c.mix_init);
  if (!(c.mix_range[0] < c.mix_range[1]))
    fail("config: mix_range is [", c.mix_range[0], ", ", c.mix_range[1], "], expected the lower end first");
}

LmConfig parse_lm_config(const JsonValue& given, const std::string& label) {
  const JsonValue object = without_transformers(given, label);
  try {
    LmConfig start;
    if (const JsonValue* name = object.find("model"); name != nullptr) {
      const JsonValue* attention = object.find("attention");
      start = lm_config(name->as_string(), attention == nullptr ? "mhla" : attention->as_string());
    }
    fields_from_json(start, object, label);
    check(start);
    return start;
  } catch (const Error& error) {
    const std::string text = error.what();
    fail(text.rfind(label, 0) == 0 ? text : label + ": " + text);
  }
}

LmConfig read_lm_config(const std::filesystem::path& path) {
  return parse_lm_config(read_json_object(path), path.string());
}

}  // namespace mhla
