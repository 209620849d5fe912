// The weights of a Wan transformer: names in both namings, and folders.
#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/models/published_names.h"
#include "mhla/models/wan/wan.h"
#include "mhla/models/weights_folder.h"

namespace mhla {
namespace {

PublishedName wan_original_name(const std::string& ours) {
  constexpr const char* kMix = ".self_attn.mix";
  if (ours.ends_with(kMix)) return {{ours}, {replaced(ours, kMix, ".self_attn.block_attn.conv.weight")}, 2};
  return {{ours}, {ours}, 0};
}

// diffusers renames all but the patches; its norm2 is the norm before cross-attention, norm3 of the original.
PublishedName wan_diffusers_name(const std::string& ours) {
  std::string name = ours;
  if (!starts_with(name, "blocks.")) {
    for (const auto& [own, other] :
         {std::pair("text_embedding.0.", "condition_embedder.text_embedder.linear_1."),
          std::pair("text_embedding.2.", "condition_embedder.text_embedder.linear_2."),
          std::pair("time_embedding.0.", "condition_embedder.time_embedder.linear_1."),
          std::pair("time_embedding.2.", "condition_embedder.time_embedder.linear_2."),
          std::pair("time_projection.1.", "condition_embedder.time_proj."),
          std::pair("head.modulation", "scale_shift_table"), std::pair("head.head.", "proj_out.")})
      if (replace_head(name, own, other)) break;
    return {{ours}, {name}, 0};
  }
  const std::size_t dot = name.find('.', 7);
  std::string rest = name.substr(dot + 1);
  const std::string head = name.substr(0, dot + 1);
  if (rest == "self_attn.mix") return {{ours}, {head + "attn1.block_attn.conv.weight"}, 2};
  if (rest == "modulation") return {{ours}, {head + "scale_shift_table"}, 0};
  for (const auto& [own, other] :
       {std::pair("self_attn.", "attn1."), std::pair("cross_attn.", "attn2."), std::pair("norm3.", "norm2."),
        std::pair("ffn.0.", "ffn.net.0.proj."), std::pair("ffn.2.", "ffn.net.2.")})
    if (replace_head(rest, own, other)) break;
  for (const char* attention : {"attn1.", "attn2."}) {
    if (!starts_with(rest, attention)) continue;
    for (const auto& [own, other] :
         {std::pair("q.", "to_q."), std::pair("k.", "to_k."), std::pair("v.", "to_v."), std::pair("o.", "to_out.0.")})
      if (replace_head(rest, std::string(attention) + own, std::string(attention) + other)) break;
  }
  return {{ours}, {head + rest}, 0};
}

PublishedNames wan_names_of(const Weights& ours, WanNames names) {
  PublishedNames list;
  for (const auto& [name, value] : ours)
    list.push_back(names == WanNames::kOriginal ? wan_original_name(name) : wan_diffusers_name(name));
  return list;
}

JsonValue wan_diffusers_json(const WanConfig& c) {
  JsonValue patch = JsonValue::array();
  for (const std::int64_t side : c.patch) patch.push(side);
  JsonValue object = JsonValue::object();
  object.set("_class_name", "WanTransformer3DModel").set("patch_size", patch);
  object.set("num_attention_heads", c.heads).set("attention_head_dim", c.dim / c.heads);
  object.set("in_channels", c.channels).set("out_channels", c.out_channels).set("text_dim", c.text_dim);
  object.set("freq_dim", c.time_channels).set("ffn_dim", c.mlp).set("num_layers", c.depth);
  return object.set("cross_attn_norm", true).set("qk_norm", "rms_norm_across_heads").set("eps", c.eps);
}

}  // namespace

Weights to_published(const WanConfig& /*config*/, const Weights& ours, WanNames names) {
  return to_published(wan_names_of(ours, names), ours);
}

void load_published(WanImpl& model, const Weights& published) {
  constexpr const char* kEntry = "load_published";
  const Weights own = weights_of(model);
  const std::vector<PublishedNames> lists{wan_names_of(own, WanNames::kOriginal),
                                          wan_names_of(own, WanNames::kDiffusers),
                                          renamed(own, [](const std::string& name) { return name; })};
  copy_weights(own, from_published(nearest_names(lists, published), own, published, kEntry), kEntry);
}

Wan load_wan(const std::filesystem::path& folder, torch::ScalarType dtype) {
  Wan model(read_wan_config(folder / "config.json"));
  model->to(dtype);
  labelled(folder.string(), [&] { load_published(*model, mapped_weights(folder)); });
  model->eval();
  return model;
}

void save_wan(const WanImpl& model, const std::filesystem::path& folder, WanNames names, double shard_bytes) {
  OutputFolder place(folder);
  const bool diffusers = names == WanNames::kDiffusers;
  write_weights_folder(place, "diffusion_pytorch_model", to_published(model.config(), weights_of(model), names),
                       shard_bytes);
  // diffusers knows softmax attention alone, and pads captions and takes angles its own way.
  const bool theirs = diffusers && model.config().attention == "softmax" && !model.config().pad_text;
  const JsonValue config = theirs ? wan_diffusers_json(model.config()) : fields_to_json(model.config());
  write_file(place.claim("config.json"), write_json(config, 2) + "\n");
  place.keep();
}

}  // namespace mhla
