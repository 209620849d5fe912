// The weights of Wan's autoencoder: names in both namings, config.json, and folders.
#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/json_object.h"
#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/models/published_names.h"
#include "mhla/models/weights_folder.h"

namespace mhla {
namespace {

// Ours are diffusers'. The original counts residuals and up-samplers of the decoder in one row, and the parts of a
// residual by their place.
std::string wan_vae_original(const std::string& ours, std::int64_t per_level) {
  std::string name = ours;
  if (replace_head(name, "quant_conv.", "conv1.") || replace_head(name, "post_quant_conv.", "conv2.")) return name;
  const std::string up = "decoder.up_blocks.";
  if (starts_with(name, up)) {
    const std::size_t dot = name.find('.', up.size());
    const std::int64_t level = std::stoll(name.substr(up.size(), dot - up.size()));
    std::string rest = name.substr(dot + 1);
    std::int64_t place = per_level - 1;
    if (!replace_head(rest, "upsamplers.0.", "")) {
      replace_head(rest, "resnets.", "");
      const std::size_t end = rest.find('.');
      place = std::stoll(rest.substr(0, end)), rest = rest.substr(end + 1);
    }
    name = "decoder.upsamples." + std::to_string(level * per_level + place) + "." + rest;
  }
  for (const auto& [own, other] :
       {std::pair(".down_blocks.", ".downsamples."), std::pair(".mid_block.resnets.0.", ".middle.0."),
        std::pair(".mid_block.attentions.0.", ".middle.1."), std::pair(".mid_block.resnets.1.", ".middle.2."),
        std::pair(".conv_in.", ".#in."), std::pair(".norm_out.", ".head.0."), std::pair(".conv_out.", ".head.2."),
        std::pair(".conv_shortcut.", ".shortcut."), std::pair(".norm1.", ".residual.0."),
        std::pair(".conv1.", ".residual.2."), std::pair(".norm2.", ".residual.3."),
        std::pair(".conv2.", ".residual.6."), std::pair(".#in.", ".conv1.")})
    name = replaced(name, own, other);
  return name;
}

PublishedNames wan_vae_names(const WanVaeConfig& c, const Weights& ours, WanVaeNames names) {
  return renamed(ours, [&](const std::string& name) {
    return names == WanVaeNames::kOriginal ? wan_vae_original(name, c.num_res_blocks + 2) : name;
  });
}

template <class T, class Read>
std::vector<T> list_of(const JsonValue& value, const Read& read) {
  std::vector<T> values;
  for (const JsonValue& item : value.items()) values.push_back(read(item));
  return values;
}

template <class T>
JsonValue json_list(const std::vector<T>& values) {
  JsonValue list = JsonValue::array();
  for (const auto& value : values) list.push(static_cast<T>(value));
  return list;
}

}  // namespace

WanVaeConfig parse_wan_vae_config(const JsonValue& object, const std::string& label) {
  return labelled(label, [&] {
    WanVaeConfig c;
    const auto numbers = [](const JsonValue& v) {
      return list_of<double>(v, [](const JsonValue& i) { return i.as_double(); });
    };
    for (const JsonValue::Member& m : object.members()) {
      const std::string& key = m.key;
      if (key == "_class_name" && m.value.as_string() != "AutoencoderKLWan")
        fail("'_class_name' is ", m.value.as_string(), ", expected AutoencoderKLWan");
      if (key.starts_with("_") || key == "dropout") continue;
      if (key == "base_dim" || key == "dim")
        c.base_dim = m.value.as_int();
      else if (key == "z_dim")
        c.z_dim = m.value.as_int();
      else if (key == "num_res_blocks")
        c.num_res_blocks = m.value.as_int();
      else if (key == "dim_mult")
        c.dim_mult = list_of<std::int64_t>(m.value, [](const JsonValue& i) { return i.as_int(); });
      else if (key == "temperal_downsample")
        c.temperal_downsample = list_of<bool>(m.value, [](const JsonValue& i) { return i.as_bool(); });
      else if (key == "latents_mean")
        c.latents_mean = numbers(m.value);
      else if (key == "latents_std")
        c.latents_std = numbers(m.value);
      else if (key == "attn_scales") {
        if (m.value.size() != 0) fail("'attn_scales' is ", write_json(m.value), ", expected []");
      } else {
        fail("'", key, "' is unknown in an AutoencoderKLWan");
      }
    }
    check(c);
    return c;
  });
}

JsonValue wan_vae_json(const WanVaeConfig& c) {
  JsonValue object = JsonValue::object();
  object.set("_class_name", "AutoencoderKLWan").set("base_dim", c.base_dim).set("z_dim", c.z_dim);
  object.set("dim_mult", json_list(c.dim_mult)).set("num_res_blocks", c.num_res_blocks);
  object.set("attn_scales", JsonValue::array()).set("temperal_downsample", json_list(c.temperal_downsample));
  return object.set("latents_mean", json_list(c.latents_mean)).set("latents_std", json_list(c.latents_std));
}

Weights to_published(const WanVaeImpl& model, const Weights& ours, WanVaeNames names) {
  return to_published(wan_vae_names(model.config(), ours, names), ours);
}

void load_published(WanVaeImpl& model, const Weights& published) {
  constexpr const char* kEntry = "load_published";
  const Weights own = weights_of(model);
  const std::vector<PublishedNames> lists{wan_vae_names(model.config(), own, WanVaeNames::kDiffusers),
                                          wan_vae_names(model.config(), own, WanVaeNames::kOriginal)};
  copy_weights(own, from_published(nearest_names(lists, published), own, published, kEntry), kEntry);
}

WanVae load_wan_vae(const std::filesystem::path& folder, torch::ScalarType dtype) {
  const std::filesystem::path config = folder / "config.json";
  WanVae model(parse_wan_vae_config(read_json_object(config), config.string()));
  model->to(dtype);
  labelled(folder.string(), [&] { load_published(*model, mapped_weights(folder)); });
  model->eval();
  return model;
}

void save_wan_vae(const WanVaeImpl& model, const std::filesystem::path& folder, WanVaeNames names) {
  OutputFolder place(folder);
  write_weights_folder(place, "diffusion_pytorch_model", to_published(model, weights_of(model), names), 5e9);
  write_file(place.claim("config.json"), write_json(wan_vae_json(model.config()), 2) + "\n");
  place.keep();
}

}  // namespace mhla
