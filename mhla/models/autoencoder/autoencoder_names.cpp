// Names of autoencoders. Ours are diffusers'.
#include "mhla/core/error.h"
#include "mhla/models/autoencoder/autoencoder.h"
#include "mhla/models/published_names.h"

namespace mhla {
namespace {

constexpr const char* kAutoencoderNamesEntry = "load_published";

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

// "3.conv.weight" gives 3 and leaves "conv.weight".
std::int64_t take_number(std::string& text) {
  const std::size_t dot = text.find('.');
  const std::int64_t number = std::stoll(text.substr(0, dot));
  text.erase(0, dot + 1);
  return number;
}

// ---- KL

// LDM's name. Levels of its decoder are counted from the finest.
std::string ldm_name(const std::string& ours, std::int64_t levels) {
  std::string rest = ours;
  for (const bool encoder : {true, false}) {
    const std::string side = encoder ? "encoder." : "decoder.";
    if (!starts_with(rest, side)) continue;
    rest.erase(0, side.size());
    replace_head(rest, "conv_norm_out.", "norm_out.");
    if (replace_head(rest, "mid_block.attentions.0.", "mid.attn_1.")) {
      for (const auto& [own, other] : {std::pair("group_norm.", "norm."), std::pair("to_out.0.", "proj_out."),
                                       std::pair("to_q.", "q."), std::pair("to_k.", "k."), std::pair("to_v.", "v.")})
        rest = replaced(rest, own, other);
    }
    replace_head(rest, "mid_block.resnets.0.", "mid.block_1.");
    replace_head(rest, "mid_block.resnets.1.", "mid.block_2.");
    if (replace_head(rest, encoder ? "down_blocks." : "up_blocks.", "")) {
      const std::int64_t level = take_number(rest);
      replace_head(rest, "resnets.", "block.");
      replace_head(rest, "downsamplers.0.", "downsample."), replace_head(rest, "upsamplers.0.", "upsample.");
      rest = str(encoder ? "down." : "up.", encoder ? level : levels - 1 - level, ".", rest);
    }
    return side + replaced(rest, "conv_shortcut", "nin_shortcut");
  }
  return rest;
}

PublishedNames ldm_names(const KlConfig& c, const Weights& ours) {
  PublishedNames names;
  for (const auto& [name, value] : ours) {
    const bool linear = name.find(".attentions.0.to_") != std::string::npos && ends_with(name, ".weight");
    names.push_back({{name}, {ldm_name(name, static_cast<std::int64_t>(c.block_out_channels.size()))}, linear ? 2 : 0});
  }
  return names;
}

// Of diffusers before 0.18.
std::string old_name(const std::string& ours) {
  std::string name = ours;
  for (const auto& [own, other] : {std::pair("to_q.", "query."), std::pair("to_k.", "key."),
                                   std::pair("to_v.", "value."), std::pair("to_out.0.", "proj_attn.")})
    name = replaced(name, own, other);
  return name;
}

// ---- DC-AE

// mit-han-lab's name of what lies in a block, `rest`.
std::string original_block_name(const DcConfig& c, bool encoder, std::string rest) {
  const std::string attention = "context_module.main.", feed = "local_module.main.";
  if (replace_head(rest, "attn.to_qkv_multiscale.", attention + "aggreg.")) {
    rest = replaced(rest, "proj_in.", "0.");
    return replaced(rest, "proj_out.", "1.");
  }
  const bool plain = encoder && c.downsample_block_type != "pixel_unshuffle";
  for (const auto& [own, other] : {std::pair<std::string, std::string>("conv1.", "main.conv1.conv."),
                                   {"conv2.", "main.conv2.conv."},
                                   {"norm.", "main.conv2.norm."},
                                   {"conv.", plain ? "main.conv." : "main.conv.conv."},
                                   {"attn.to_out.", attention + "proj.conv."},
                                   {"attn.norm_out.", attention + "proj.norm."},
                                   {"conv_out.conv_inverted.", feed + "inverted_conv.conv."},
                                   {"conv_out.conv_depth.", feed + "depth_conv.conv."},
                                   {"conv_out.conv_point.", feed + "point_conv.conv."},
                                   {"conv_out.norm.", feed + "point_conv.norm."}})
    if (replace_head(rest, own, other)) return rest;
  return rest;
}

std::string original_name(const DcConfig& c, const std::string& ours) {
  const bool encoder = starts_with(ours, "encoder.");
  const std::string side = encoder ? "encoder." : "decoder.";
  std::string rest = ours.substr(side.size());
  if (replace_head(rest, encoder ? "down_blocks." : "up_blocks.", "")) {
    const std::int64_t level = take_number(rest), block = take_number(rest);
    return str(side, "stages.", level, ".op_list.", block, ".", original_block_name(c, encoder, rest));
  }
  replace_head(rest, "conv_in.", encoder ? "project_in.conv." : "project_in.main.conv.");
  replace_head(rest, "norm_out.", "project_out.op_list.0.");
  replace_head(rest, "conv_out.", encoder ? "project_out.main.op_list.0.conv." : "project_out.op_list.2.conv.");
  return side + rest;
}

PublishedNames original_names(const DcConfig& c, const Weights& ours) {
  PublishedNames names;
  for (const auto& [name, value] : ours) {
    const std::size_t q = name.find(".attn.to_q.weight");
    if (q != std::string::npos) {
      const std::string block = name.substr(0, q);
      names.push_back({{name, block + ".attn.to_k.weight", block + ".attn.to_v.weight"},
                       {replaced(original_name(c, block + ".conv1.x"), "main.conv1.conv.x", "") +
                        "context_module.main.qkv.conv.weight"},
                       2});
    } else if (!ends_with(name, ".attn.to_k.weight") && !ends_with(name, ".attn.to_v.weight")) {
      names.push_back({{name}, {original_name(c, name)}, ends_with(name, ".attn.to_out.weight") ? 2 : 0});
    }
  }
  return names;
}

// Files differ in which containers they name.
std::string without_containers(const std::string& name) {
  return replaced(replaced(replaced(name, "op_list.", ""), "main.", ""), "conv.conv.", "conv.");
}

std::string same(const std::string& name) { return name; }

PublishedNames names_of(const AutoencoderConfig& config, const Weights& ours, AutoencoderNames names) {
  if (names == AutoencoderNames::kDiffusers) return renamed(ours, same);
  const auto* kl = std::get_if<KlConfig>(&config);
  return kl != nullptr ? ldm_names(*kl, ours) : original_names(std::get<DcConfig>(config), ours);
}

// The tensors of the autoencoder in a file, which may have other things beside it.
Weights of_autoencoder(const Weights& file) {
  const std::string prefix = "first_stage_model.";
  Weights inside;
  for (const auto& [name, value] : file)
    if (starts_with(name, prefix)) inside[name.substr(prefix.size())] = value;
  if (inside.empty()) inside = file;
  for (auto it = inside.begin(); it != inside.end();) {  // the discriminator of its training
    const bool passed = starts_with(it->first, "loss.") || starts_with(it->first, "model_ema.");
    it = passed ? inside.erase(it) : std::next(it);
  }
  return inside;
}

}  // namespace

Weights to_published(const AutoencoderConfig& config, const Weights& ours, AutoencoderNames names) {
  return to_published(names_of(config, ours, names), ours);
}

void load_published(Autoencoder& model, const Weights& published) {
  const Weights own = weights_of(model), file = of_autoencoder(published);
  std::vector<PublishedNames> lists{names_of(model.config(), own, AutoencoderNames::kDiffusers),
                                    names_of(model.config(), own, AutoencoderNames::kOriginal)};
  if (std::holds_alternative<KlConfig>(model.config())) {
    lists.push_back(renamed(own, old_name));
    return copy_weights(own, from_published(nearest_names(lists, file), own, file, kAutoencoderNamesEntry),
                        kAutoencoderNamesEntry);
  }
  Weights bare;
  for (const auto& [name, value] : file) bare[without_containers(name)] = value;
  std::vector<PublishedNames> bare_lists = lists;
  for (PublishedName& entry : bare_lists[1])
    for (std::string& name : entry.published) name = without_containers(name);
  const PublishedNames& nearest = nearest_names(bare_lists, bare);
  const bool original = &nearest == &bare_lists[1];
  copy_weights(own, from_published(original ? nearest : lists[0], own, original ? bare : file, kAutoencoderNamesEntry),
               kAutoencoderNamesEntry);
}

}  // namespace mhla
