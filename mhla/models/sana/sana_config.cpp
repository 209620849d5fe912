// The named models, what a configuration may not be, diffusers' config.json, and sizes by formula.
#include "mhla/models/sana/sana_config.h"

#include <algorithm>

#include "mhla/core/labelled.h"
#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"
#include "mhla/kernels/mixing/mixing.h"
#include "mhla/models/image_parts.h"
#include "mhla/modules/attention_size.h"
#include "mhla/modules/feature_maps.h"
#include "mhla/ops/torch.h"

namespace mhla {
namespace {

constexpr const char* kClass = "SanaTransformer2DModel";
constexpr bool kPairs = TORCH_VERSION_MAJOR < 2;  // softmax attention has all pairs at once

void within(const char* field, std::int64_t value, const Limit& limit) { expect_within("config", field, value, limit); }

void expect_positive(const char* field, double value) {
  if (!(value > 0.0)) fail("config: ", field, " is ", value, ", expected a positive number");
}

std::int64_t width_of(const SanaConfig& c) {
  return static_cast<std::int64_t>(c.mlp_ratio * static_cast<double>(c.dim));
}

SanaConfig from_diffusers(const JsonValue& object) {
  SanaConfig c;
  c.truncate_t = false, c.eps = 1e-15;
  std::int64_t heads = 70, cross_size = 112, out = 0, cross_dim = 0;
  c.channels = 32, c.dim = 0, c.depth = 20, c.cross_heads = 20;
  const auto expect = [](const JsonValue::Member& m, bool good, const char* expected) {
    if (!good) fail("'", m.key, "' is ", write_json(m.value), ", expected ", expected);
  };
  for (const JsonValue::Member& m : object.members()) {
    const std::string& key = m.key;
    const JsonValue& value = m.value;
    if (key.starts_with("_") || key == "sample_size" || key == "dropout") continue;
    if (key == "in_channels")
      c.channels = value.as_int();
    else if (key == "out_channels")
      out = value.is_null() ? 0 : value.as_int();
    else if (key == "num_attention_heads")
      heads = value.as_int();
    else if (key == "attention_head_dim")
      c.head_dim = value.as_int();
    else if (key == "num_layers")
      c.depth = value.as_int();
    else if (key == "num_cross_attention_heads")
      c.cross_heads = value.is_null() ? heads : value.as_int();
    else if (key == "cross_attention_head_dim")
      cross_size = value.as_int();
    else if (key == "cross_attention_dim")
      cross_dim = value.is_null() ? 0 : value.as_int();
    else if (key == "caption_channels")
      c.caption_dim = value.as_int();
    else if (key == "mlp_ratio")
      c.mlp_ratio = value.as_double();
    else if (key == "patch_size")
      c.patch = value.as_int();
    else if (key == "norm_eps")
      c.norm_eps = value.as_double();
    else if (key == "attention_bias")
      expect(m, !value.as_bool(), "false");
    else if (key == "norm_elementwise_affine")
      expect(m, !value.as_bool(), "false");
    else if (key == "interpolation_scale")
      expect(m, value.is_null(), "null: position tables are not implemented");
    else if (key == "guidance_embeds")
      expect(m, !value.as_bool(), "false: distilled models are not implemented");
    else if (key == "guidance_embeds_scale")
      continue;  // of guidance_embeds
    else if (key == "timestep_scale")
      expect(m, value.as_double() == 1.0, "1");
    else if (key == "qk_norm") {
      expect(m, value.is_null() || value.as_string() == "rms_norm_across_heads", "null or rms_norm_across_heads");
      c.qk_norm = !value.is_null();
    } else {
      fail("'", key, "' is unknown in a ", kClass);
    }
  }
  c.dim = heads * c.head_dim;
  c.model = c.dim > SanaConfig{}.dim ? "sana_1600m" : "sana_600m";
  if (c.cross_heads * cross_size != c.dim || (cross_dim != 0 && cross_dim != c.dim))
    fail("cross-attention has ", c.cross_heads, " heads of ", cross_size, " over ", cross_dim,
         " channels, expected heads that have the ", c.dim, " channels of the model");
  if (out != 0 && out != c.channels) fail("'out_channels' is ", out, ", expected in_channels = ", c.channels);
  return c;
}

}  // namespace

std::vector<std::string> sana_names() { return {"sana_600m", "sana_1600m"}; }

SanaConfig sana_config(std::string_view name, std::string_view attention) {
  SanaConfig c;
  if (name == "sana_1600m") {
    c.dim = 2240, c.depth = 20, c.cross_heads = 20;
  } else if (name != "sana_600m") {
    fail("config: model is '", name, "', expected sana_600m or sana_1600m");
  }
  c.model = name, c.attention = attention;
  if (attention == "mhla") c.eps = 1e-6, c.features = "relu_eps";
  check(c);
  return c;
}

void check(const SanaConfig& c) {
  if (c.family != "sana") fail("config: family is '", c.family, "', expected sana");
  if (c.attention != "linear" && c.attention != "mhla" && c.attention != "softmax")
    fail("config: attention is '", c.attention, "', expected linear, mhla or softmax");
  within("channels", c.channels, limits::kChannels), within("patch", c.patch, limits::kPatch);
  within("dim", c.dim, limits::kDim), within("depth", c.depth, limits::kLayers);
  within("head_dim", c.head_dim, limits::kHeadSize), within("cross_heads", c.cross_heads, limits::kHeads);
  within("caption_dim", c.caption_dim, limits::kDim), within("caption_tokens", c.caption_tokens, limits::kContext);
  if (c.dim % c.head_dim != 0) fail("config: dim is ", c.dim, ", expected a multiple of head_dim = ", c.head_dim);
  if (c.dim % c.cross_heads != 0)
    fail("config: dim is ", c.dim, ", expected a multiple of cross_heads = ", c.cross_heads);
  expect_positive("mlp_ratio", c.mlp_ratio);
  if (const double width = c.mlp_ratio * static_cast<double>(c.dim);
      !(width >= 1.0 && width <= static_cast<double>(limits::kMlp.most)))
    fail("config: mlp_ratio is ", c.mlp_ratio, ", which gives ", width, " channels, expected 1 to ", limits::kMlp.most);
  expect_positive("norm_eps", c.norm_eps), expect_positive("caption_norm_eps", c.caption_norm_eps);
  expect_positive("qk_norm_eps", c.qk_norm_eps), expect_positive("eps", c.eps);
  expect_positive("mix_sigma", c.mix_sigma);
  if (!is_fused(parse_features(c.features)))
    fail("config: features is '", c.features, "', expected one of ", feature_map_list());
  for (const std::int64_t count : c.blocks) within("blocks", count, limits::kBlocks);
  parse_mix_transform(c.mix_init);
  if (!(c.mix_range[0] < c.mix_range[1]))
    fail("config: mix_range is [", c.mix_range[0], ", ", c.mix_range[1], "], expected the lower end first");
}

SanaConfig parse_sana_config(const JsonValue& object, const std::string& label) {
  return labelled(label, [&] {
    SanaConfig c;
    if (const JsonValue* name = object.find("_class_name"); name != nullptr) {
      if (name->as_string() != kClass) fail("'_class_name' is ", name->as_string(), ", expected ", kClass);
      c = from_diffusers(object);
    } else {
      if (const JsonValue* start = object.find("model"); start != nullptr && !start->as_string().empty()) {
        const JsonValue* attention = object.find("attention");
        c = sana_config(start->as_string(), attention == nullptr ? "linear" : attention->as_string());
      }
      fields_from_json(c, object, label);
    }
    check(c);
    return c;
  });
}

SanaConfig read_sana_config(const std::filesystem::path& path) {
  return parse_sana_config(read_json_object(path), path.string());
}

JsonValue sana_diffusers_json(const SanaConfig& c, std::int64_t sample_size) {
  JsonValue object = JsonValue::object();
  object.set("_class_name", kClass).set("in_channels", c.channels).set("out_channels", c.channels);
  object.set("num_attention_heads", c.dim / c.head_dim).set("attention_head_dim", c.head_dim);
  object.set("num_layers", c.depth).set("num_cross_attention_heads", c.cross_heads);
  object.set("cross_attention_head_dim", c.dim / c.cross_heads).set("cross_attention_dim", c.dim);
  object.set("caption_channels", c.caption_dim).set("mlp_ratio", c.mlp_ratio).set("dropout", 0.0);
  object.set("attention_bias", false).set("sample_size", sample_size).set("patch_size", c.patch);
  object.set("norm_elementwise_affine", false).set("norm_eps", c.norm_eps).set("interpolation_scale", JsonValue());
  return object.set("qk_norm", c.qk_norm ? JsonValue("rms_norm_across_heads") : JsonValue());
}

ModelSize size_of(const SanaConfig& c, std::int64_t rows, std::int64_t columns) {
  const auto dim = static_cast<double>(c.dim), width = static_cast<double>(width_of(c)),
             caption = static_cast<double>(c.caption_dim), tokens = static_cast<double>(c.caption_tokens),
             out = static_cast<double>(c.patch * c.patch * c.channels), depth = static_cast<double>(c.depth);
  const double mix = c.attention == "mhla" ? static_cast<double>(c.blocks[0] * c.blocks[1]) : 0.0;
  const double block = linear_size(dim, 3 * dim, false) + 2 * linear_size(dim, dim, true) + mix * mix +
                       linear_size(dim, dim, true) + linear_size(dim, 2 * dim, true) + (c.qk_norm ? 4 * dim : 0.0) +
                       glu_conv_size(c.dim, width_of(c), false) + 6 * dim;
  ModelSize size;
  size.parameters = depth * block + conv_size(c.channels, c.dim, c.patch) + linear_size(256, dim, true) +
                    linear_size(dim, dim, true) + linear_size(dim, 6 * dim, true) + linear_size(caption, dim, true) +
                    linear_size(dim, dim, true) + dim + 2 * dim + linear_size(dim, out, true);
  const double places =
      static_cast<double>(rows) * static_cast<double>(columns) / static_cast<double>(c.patch * c.patch);
  const double pairs = static_cast<double>(c.cross_heads) * tokens +
                       (c.attention == "softmax" ? static_cast<double>(c.dim / c.head_dim) * places : 0.0);
  // Inputs of both norms and products, q, k, v, attention's results, 2 widths before and after SiLU and the products.
  size.kept = depth * (places * (10 * dim + 5 * width) + 2 * tokens * dim);
  size.passing = places * (3 * dim + std::max(4 * width, kPairs ? 2 * pairs : 4 * dim));
  return size;
}

}  // namespace mhla
