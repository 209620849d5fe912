// Configurations as diffusers writes them, and what they may not be.
#include "mhla/models/autoencoder/autoencoder_config.h"

#include <algorithm>
#include <cmath>

#include "mhla/core/labelled.h"
#include "mhla/core/limits.h"
#include "mhla/io/json_object.h"

namespace mhla {
namespace {

constexpr const char* kClass = "_class_name";
constexpr const char *kKl = "AutoencoderKL", *kDc = "AutoencoderDC";

void within(const char* field, std::int64_t value, const Limit& limit) { expect_within("config", field, value, limit); }

void expect_positive(const char* field, double value) {
  if (!(value > 0.0)) fail("config: ", field, " is ", value, ", expected a positive number");
}

// Every text in a value that is a text or a list of texts (diffusers takes both) is `expected`.
void expect_all(const JsonValue& value, const char* field, const std::string& expected) {
  if (value.is_null()) return;
  const JsonValue::Array items = value.is_array() ? value.items() : JsonValue::Array{value};
  for (const JsonValue& item : items)
    if (item.as_string() != expected)
      fail("'", field, "' has ", item.as_string(), ", expected ", expected, ": other networks are not implemented");
}

// The members that are fields of the config. The others must say what this network does, or change nothing.
template <class Config>
JsonValue own_fields(const JsonValue& object, const std::vector<std::pair<const char*, std::string>>& fixed) {
  const std::vector<std::string> passed{"force_upcast", "family", "names", "note"};
  JsonValue own = JsonValue::object();
  for (const JsonValue::Member& member : object.members()) {
    if (member.key.starts_with("_") || std::find(passed.begin(), passed.end(), member.key) != passed.end()) continue;
    const auto one = std::find_if(fixed.begin(), fixed.end(), [&](const auto& f) { return member.key == f.first; });
    if (one == fixed.end()) {
      own.set(member.key, member.value);
    } else if (one->second.empty()) {
      if (!member.value.is_null()) fail("'", member.key, "' is given, expected null: it is not implemented");
    } else {
      expect_all(member.value, one->first, one->second);
    }
  }
  return own;
}

// A text for all levels becomes a list, as diffusers reads it.
void spread(JsonValue& object, const char* field, std::size_t levels) {
  const JsonValue* value = object.find(field);
  if (value == nullptr || !value->is_string()) return;
  const JsonValue one = *value;
  object.set(field, JsonValue(JsonValue::Array(levels, one)));
}

KlConfig parse_kl(const JsonValue& object, const std::string& label) {
  KlConfig config;
  const JsonValue own = own_fields<KlConfig>(object, {{"act_fn", "silu"},
                                                      {"down_block_types", "DownEncoderBlock2D"},
                                                      {"up_block_types", "UpDecoderBlock2D"},
                                                      {"latents_mean", ""},
                                                      {"latents_std", ""}});
  fields_from_json(config, own, label);
  check(config);
  return config;
}

DcConfig parse_dc(const JsonValue& object, const std::string& label) {
  DcConfig config;
  JsonValue own = own_fields<DcConfig>(
      object, {{"decoder_norm_types", "rms_norm"}, {"decoder_act_fns", "silu"}, {"decoder_conv_act_fn", "relu"}});
  const JsonValue* widths = own.find("encoder_block_out_channels");
  for (const char* field : {"encoder_block_types", "decoder_block_types"})
    spread(own, field, widths == nullptr ? config.encoder_block_out_channels.size() : widths->size());
  fields_from_json(config, own, label);
  check(config);
  return config;
}

void check_side(const std::string& side, const DcConfig& c, const std::vector<std::string>& types,
                const std::vector<std::int64_t>& widths, const std::vector<std::int64_t>& layers,
                const std::vector<std::vector<std::int64_t>>& scales) {
  const std::size_t levels = widths.size();
  if (levels < 2 || types.size() != levels || layers.size() != levels || scales.size() != levels)
    fail("config: ", side, " has ", levels, " levels of channels, ", types.size(), " of types, ", layers.size(),
         " of layers and ", scales.size(), " of scales, expected one number of at least 2 for all");
  for (std::size_t i = 0; i < levels; ++i) {
    within((side + "_block_out_channels").c_str(), widths[i], limits::kDim);
    within((side + "_layers_per_block").c_str(), layers[i], limits::kLayers);
    for (const std::int64_t kernel : scales[i]) {
      within((side + "_qkv_multiscales").c_str(), kernel, limits::kTaps);
      if (kernel % 2 == 0) fail("config: ", side, "_qkv_multiscales has ", kernel, ", expected odd kernels");
    }
    if (types[i] == "EfficientViTBlock") {
      if (widths[i] % c.attention_head_dim != 0)
        fail("config: ", side, "_block_out_channels has ", widths[i], " for an EfficientViTBlock, expected a multiple",
             " of attention_head_dim = ", c.attention_head_dim);
    } else if (types[i] != "ResBlock") {
      fail("config: ", side, "_block_types has ", types[i], ", expected ResBlock or EfficientViTBlock");
    }
    if (i + 1 < levels && (4 * widths[i] % widths[i + 1] != 0 || widths[i + 1] % 4 != 0))
      fail("config: ", side, "_block_out_channels has ", widths[i], " before ", widths[i + 1],
           ", expected a multiple of 4 that divides 4 times the one before");
  }
  if (widths.back() % c.latent_channels != 0)
    fail("config: ", side, "_block_out_channels ends with ", widths.back(),
         ", expected a multiple of latent_channels = ", c.latent_channels);
}

}  // namespace

void check(const KlConfig& c) {
  within("in_channels", c.in_channels, limits::kChannels), within("out_channels", c.out_channels, limits::kChannels);
  within("latent_channels", c.latent_channels, limits::kChannels);
  within("layers_per_block", c.layers_per_block, limits::kLayers);
  if (c.block_out_channels.empty() || c.block_out_channels.size() > 8)
    fail("config: block_out_channels has ", c.block_out_channels.size(), " levels, expected 1 to 8");
  for (const std::int64_t width : c.block_out_channels) {
    within("block_out_channels", width, limits::kDim);
    if (c.norm_num_groups < 1 || width % c.norm_num_groups != 0)
      fail("config: block_out_channels has ", width, ", expected multiples of norm_num_groups = ", c.norm_num_groups);
  }
  expect_positive("norm_eps", c.norm_eps), expect_positive("scaling_factor", c.scaling_factor);
}

void check(const DcConfig& c) {
  within("in_channels", c.in_channels, limits::kChannels), within("latent_channels", c.latent_channels, limits::kDim);
  within("attention_head_dim", c.attention_head_dim, limits::kHeadSize);
  check_side("encoder", c, c.encoder_block_types, c.encoder_block_out_channels, c.encoder_layers_per_block,
             c.encoder_qkv_multiscales);
  check_side("decoder", c, c.decoder_block_types, c.decoder_block_out_channels, c.decoder_layers_per_block,
             c.decoder_qkv_multiscales);
  if (c.encoder_block_out_channels.size() != c.decoder_block_out_channels.size())
    fail("config: encoder has ", c.encoder_block_out_channels.size(), " levels and decoder ",
         c.decoder_block_out_channels.size(), ", expected the same number");
  const auto one_of = [](const char* field, const std::string& value, const char* a, const char* b) {
    if (value != a && value != b) fail("config: ", field, " is '", value, "', expected ", a, " or ", b);
  };
  one_of("upsample_block_type", c.upsample_block_type, "interpolate", "pixel_shuffle");
  std::string down = c.downsample_block_type;
  std::transform(down.begin(), down.end(), down.begin(), [](unsigned char x) { return std::tolower(x); });
  one_of("downsample_block_type", down, "conv", "pixel_unshuffle");
  expect_positive("norm_eps", c.norm_eps), expect_positive("attention_eps", c.attention_eps);
  expect_positive("scaling_factor", c.scaling_factor);
}

AutoencoderConfig parse_autoencoder_config(const JsonValue& object, const std::string& label) {
  return labelled(label, [&]() -> AutoencoderConfig {
    const std::string& name = object.at(kClass).as_string();
    if (name == kKl) return parse_kl(object, label);
    if (name == kDc) return parse_dc(object, label);
    fail("'", kClass, "' is ", name, ", expected ", kKl, " or ", kDc);
  });
}

AutoencoderConfig read_autoencoder_config(const std::filesystem::path& path) {
  return parse_autoencoder_config(read_json_object(path), path.string());
}

JsonValue autoencoder_json(const AutoencoderConfig& config) {
  JsonValue object = JsonValue::object();
  const auto add = [&](const auto& c) {
    const JsonValue own = fields_to_json(c);
    for (const JsonValue::Member& member : own.members()) object.set(member.key, member.value);
  };
  if (const auto* kl = std::get_if<KlConfig>(&config)) {
    const std::size_t levels = kl->block_out_channels.size();
    object.set(kClass, kKl).set("act_fn", "silu");
    object.set("down_block_types", JsonValue(JsonValue::Array(levels, JsonValue("DownEncoderBlock2D"))));
    object.set("up_block_types", JsonValue(JsonValue::Array(levels, JsonValue("UpDecoderBlock2D"))));
    add(*kl);
  } else {
    object.set(kClass, kDc).set("decoder_norm_types", "rms_norm").set("decoder_act_fns", "silu");
    add(std::get<DcConfig>(config));
  }
  return object;
}

std::int64_t downsampling_of(const AutoencoderConfig& config) {
  const auto* kl = std::get_if<KlConfig>(&config);
  const std::size_t levels =
      kl != nullptr ? kl->block_out_channels.size() : std::get<DcConfig>(config).encoder_block_out_channels.size();
  return std::int64_t{1} << (levels - 1);
}

LatentFormat latent_format(const AutoencoderConfig& config) {
  if (const auto* kl = std::get_if<KlConfig>(&config))
    return {kl->latent_channels, kl->scaling_factor, kl->shift_factor.value_or(0.0)};
  const auto& dc = std::get<DcConfig>(config);
  return {dc.latent_channels, dc.scaling_factor, 0.0};
}

bool same_scale(double a, double b) { return std::abs(a - b) <= 1e-4 * std::abs(b); }

}  // namespace mhla
