// The named models, what a configuration may not be, the config.json of diffusers and of the original, and sizes by
// formula.
#include "mhla/models/wan/wan_config.h"

#include <algorithm>
#include <charconv>

#include "mhla/core/labelled.h"
#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/modules/attention_size.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr const char *kWanDiffusers = "WanTransformer3DModel", *kWanOriginal = "WanModel";
constexpr bool kWanPairs = TORCH_VERSION_MAJOR < 2;  // softmax attention has all pairs at once

void expect_wan_positive(const char* field, double value) {
  if (!(value > 0.0)) fail("config: ", field, " is ", value, ", expected a positive number");
}

// What both published configurations call by names of their own; the rest of the keys are refused or passed over.
WanConfig from_published_config(const JsonValue& object, bool diffusers) {
  WanConfig c;
  c.model = "", c.pad_text = c.wide_time = !diffusers;
  std::int64_t head_dim = 128;
  for (const JsonValue::Member& m : object.members()) {
    const std::string& key = m.key;
    const JsonValue& value = m.value;
    const auto expect = [&](bool good, const char* expected) {
      if (!good) fail("'", key, "' is ", write_json(value), ", expected ", expected);
    };
    if (key.starts_with("_") || key == "rope_max_seq_len" || key == "window_size") continue;
    if (key == "patch_size")
      fields::from_json(value, c.patch);
    else if (key == (diffusers ? "num_attention_heads" : "num_heads"))
      c.heads = value.as_int();
    else if (key == "attention_head_dim" && diffusers)
      head_dim = value.as_int();
    else if (key == "dim" && !diffusers)
      c.dim = value.as_int();
    else if (key == (diffusers ? "in_channels" : "in_dim"))
      c.channels = value.as_int();
    else if (key == (diffusers ? "out_channels" : "out_dim"))
      c.out_channels = value.as_int();
    else if (key == "text_dim")
      c.text_dim = value.as_int();
    else if (key == "text_len" && !diffusers)
      c.text_tokens = value.as_int();
    else if (key == "freq_dim")
      c.time_channels = value.as_int();
    else if (key == "ffn_dim")
      c.mlp = value.as_int();
    else if (key == "num_layers")
      c.depth = value.as_int();
    else if (key == "eps")
      c.eps = value.as_double();
    else if (key == "cross_attn_norm")
      expect(value.as_bool(), "true");
    else if (key == "qk_norm" && diffusers)
      expect(value.as_string() == "rms_norm_across_heads", "rms_norm_across_heads");
    else if (key == "qk_norm")
      expect(value.as_bool(), "true");
    else if (key == "model_type")
      expect(value.as_string() == "t2v", "t2v: models that take an image are not implemented");
    else if (key == "image_dim" || key == "added_kv_proj_dim" || key == "pos_embed_seq_len")
      expect(value.is_null(), "null: models that take an image are not implemented");
    else
      fail("'", key, "' is unknown in a ", diffusers ? kWanDiffusers : kWanOriginal);
  }
  if (diffusers) c.dim = c.heads * head_dim;
  return c;
}

}  // namespace

std::string WanConfig::attention_of(std::int64_t layer) const {
  const bool listed = layers.empty() || std::find(layers.begin(), layers.end(), layer) != layers.end();
  return listed ? attention : "softmax";
}

std::vector<std::string> wan_names() { return {"wan_1_3b", "wan_14b", "wan_d64", "wan_s64"}; }

WanConfig wan_config(std::string_view name, std::string_view attention) {
  WanConfig c;
  if (name == "wan_14b") {
    c.dim = 5120, c.depth = 40, c.heads = 40, c.mlp = 13824;
  } else if (name == "wan_d64" || name == "wan_s64") {
    const bool demo = name == "wan_d64";
    c.dim = demo ? 128 : 384, c.depth = demo ? 8 : 12, c.heads = demo ? 2 : 6, c.mlp = 4 * c.dim;
    c.channels = c.out_channels = 12;
    c.text_dim = 64, c.text_tokens = 16, c.vocab = 36;
    c.blocks = {4, 4, 4};
  } else if (name != "wan_1_3b") {
    fail("config: model is '", name, "', expected wan_1_3b, wan_14b, wan_d64 or wan_s64");
  }
  c.model = name, c.attention = attention;
  if (attention == "linear") c.normalizer = "paper";
  check(c);
  return c;
}

std::vector<std::int64_t> wan_layers(const std::string& text, std::int64_t depth, const std::string& entry) {
  const auto number = [](std::string_view digits) {  // or -1
    std::int64_t value = -1;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && stop == digits.data() + digits.size() && value >= 0 ? value : -1;
  };
  constexpr const char* kExpected = "all, every-3rd-kept, or numbers joined by commas";
  std::vector<std::int64_t> layers;
  if (text == "all") return layers;
  constexpr std::string_view kHead = "every-";
  for (const std::string_view tail : {"nd-kept", "rd-kept", "th-kept"}) {
    if (!text.starts_with(kHead) || !text.ends_with(tail) || text.size() <= kHead.size() + tail.size()) continue;
    const std::int64_t every =
        number(std::string_view(text).substr(kHead.size(), text.size() - kHead.size() - tail.size()));
    if (every < 2) fail(entry, " is '", text, "', expected ", kExpected);
    for (std::int64_t layer = 0; layer < depth; ++layer)
      if (layer % every != 0) layers.push_back(layer);
    if (layers.empty()) fail(entry, " is ", text, ", which leaves none of ", depth, " layers");
    return layers;
  }
  std::string_view rest = text;
  while (true) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const std::int64_t layer = number(word);
    if (layer < 0) fail(entry, " is '", text, "', expected ", kExpected);
    if (layer >= depth) fail(entry, " has ", layer, ", expected 0 to ", depth - 1);
    layers.push_back(layer);
    if (word.size() == rest.size()) return layers;
    rest.remove_prefix(word.size() + 1);
  }
}

void check(const WanConfig& c) {
  const auto within = [](const char* field, std::int64_t value, const Limit& limit) {
    expect_within("config", field, value, limit);
  };
  if (c.family != "wan") fail("config: family is '", c.family, "', expected wan");
  if (c.attention != "linear" && c.attention != "mhla" && c.attention != "softmax")
    fail("config: attention is '", c.attention, "', expected softmax, mhla or linear");
  within("channels", c.channels, limits::kChannels), within("out_channels", c.out_channels, limits::kChannels);
  within("dim", c.dim, limits::kDim), within("depth", c.depth, limits::kLayers);
  within("heads", c.heads, limits::kHeads), within("mlp", c.mlp, limits::kMlp);
  within("text_dim", c.text_dim, limits::kDim), within("text_tokens", c.text_tokens, limits::kContext);
  if (c.vocab != 0) within("vocab", c.vocab, limits::kVocab);
  within("time_channels", c.time_channels, limits::kDim), within("lepe", c.lepe, limits::kTaps);
  for (const std::int64_t side : c.patch) within("patch", side, limits::kPatch);
  for (const std::int64_t count : c.blocks) within("blocks", count, limits::kBlocks);
  if (c.dim % c.heads != 0) fail("config: dim is ", c.dim, ", expected a multiple of heads = ", c.heads);
  if ((c.dim / c.heads) % 2 != 0 || c.dim / c.heads < 6)
    fail("config: heads have ", c.dim / c.heads, " channels, expected an even number, 6 or more, for rotary positions");
  if (c.time_channels % 2 != 0) fail("config: time_channels is ", c.time_channels, ", expected an even number");
  if (c.lepe % 2 == 0 && c.lepe != 0) fail("config: lepe is ", c.lepe, ", expected 0 or an odd number");
  if (c.attention == "softmax" && !c.layers.empty())
    fail("config: layers are listed for softmax attention, which all have, expected none");
  for (const std::int64_t layer : c.layers) {
    if (layer < 0 || layer >= c.depth)
      fail("config: layers has ", layer, ", expected 0 to ", c.depth - 1, " of a model of ", c.depth, " layers");
    if (std::count(c.layers.begin(), c.layers.end(), layer) != 1) fail("config: layers has ", layer, " twice");
  }
  expect_wan_positive("eps", c.eps), expect_wan_positive("normalizer_eps", c.normalizer_eps);
  expect_wan_positive("mix_sigma", c.mix_sigma);
  if (!is_fused(parse_features(c.features)))
    fail("config: features is '", c.features, "', expected one of ", feature_map_list());
  if (c.normalizer != "none" && c.normalizer != "paper" && c.normalizer != "official")
    fail("config: normalizer is '", c.normalizer, "', expected none, paper or official");
  if (c.gate != "none" && c.gate != "silu") fail("config: gate is '", c.gate, "', expected none or silu");
  parse_mix_transform(c.mix_init);
  if (!(c.mix_range[0] < c.mix_range[1]))
    fail("config: mix_range is [", c.mix_range[0], ", ", c.mix_range[1], "], expected the lower end first");
}

WanConfig parse_wan_config(const JsonValue& object, const std::string& label) {
  return labelled(label, [&] {
    WanConfig c;
    if (const JsonValue* name = object.find("_class_name"); name != nullptr) {
      const std::string known(name->as_string());
      if (known != kWanDiffusers && known != kWanOriginal)
        fail("'_class_name' is ", known, ", expected ", kWanDiffusers, " or ", kWanOriginal);
      c = from_published_config(object, known == kWanDiffusers);
    } else {
      if (const JsonValue* start = object.find("model"); start != nullptr && !start->as_string().empty()) {
        const JsonValue* attention = object.find("attention");
        c = wan_config(start->as_string(), attention == nullptr ? "softmax" : attention->as_string());
      }
      fields_from_json(c, object, label);
    }
    check(c);
    return c;
  });
}

WanConfig read_wan_config(const std::filesystem::path& path) {
  return parse_wan_config(read_json_object(path), path.string());
}

ModelSize size_of(const WanConfig& c, const std::array<std::int64_t, 3>& latent, bool recompute) {
  const auto dim = static_cast<double>(c.dim), mlp = static_cast<double>(c.mlp), heads = static_cast<double>(c.heads),
             text = static_cast<double>(c.text_dim), words = static_cast<double>(c.text_tokens),
             depth = static_cast<double>(c.depth);
  const double attention = 4 * linear_size(dim, dim, true) + 2 * dim;  // q, k, v, o and the norms of q and k
  const double block = 2 * attention + 2 * dim + linear_size(dim, mlp, true) + linear_size(mlp, dim, true) + 6 * dim;
  const auto side = static_cast<double>(c.patch[0] * c.patch[1] * c.patch[2]);
  ModelSize size;
  size.parameters = depth * block + dim * (static_cast<double>(c.channels) * side + 1) + linear_size(text, dim, true) +
                    linear_size(dim, dim, true) + linear_size(static_cast<double>(c.time_channels), dim, true) +
                    linear_size(dim, dim, true) + linear_size(dim, 6 * dim, true) +
                    linear_size(dim, side * static_cast<double>(c.out_channels), true) + 2 * dim +
                    static_cast<double>(c.vocab) * text;
  double softmax = 0;
  for (std::int64_t layer = 0; layer < c.depth; ++layer) {
    const std::string own = c.attention_of(layer);
    if (own == "softmax") {
      ++softmax;
      continue;
    }
    const double M = own == "mhla" ? static_cast<double>(c.blocks[0] * c.blocks[1] * c.blocks[2]) : 0.0;
    const auto taps = static_cast<double>(c.lepe * c.lepe * c.lepe);
    size.parameters += M * M + (c.head_norm ? dim / heads : 0.0) +
                       (c.gate == "silu" ? linear_size(dim, dim, true) : 0.0) + (c.lepe != 0 ? dim * (taps + 1) : 0.0);
  }
  double places = 1;
  for (std::size_t axis = 0; axis < 3; ++axis)
    places *= static_cast<double>(latent[axis]) / static_cast<double>(c.patch[axis]);
  const double pairs = heads * (softmax > 0 ? std::max(places, words) : words);
  const double block_kept = places * (14 * dim + 2 * mlp) + 2 * words * dim;
  size.kept = recompute ? depth * places * dim + block_kept : depth * block_kept;
  size.passing = places * (4 * dim + std::max(2 * mlp, kWanPairs ? 2 * pairs : 4 * dim));
  return size;
}

}  // namespace mhla
