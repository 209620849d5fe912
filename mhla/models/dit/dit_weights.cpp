// The weights of a diffusion transformer under published names, at another size, with another attention, in a folder.
#include <cmath>

#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/models/dit/dit.h"
#include "mhla/models/published_names.h"
#include "mhla/models/resampled.h"
#include "mhla/models/weights_file.h"

namespace mhla {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Ours and the published beginnings of names. Those of an MHLA layer lie below "blocks.{l}.attn.".
const Pairs kMhlaNames{{"qkv.", "to_qkv."}, {"out.", "to_out.0."}, {"gate.", "g."}, {"head_norm.weight", "g_norm"}};
const Pairs kDiffusersNames{{"adaLN_modulation.1.", "norm1.linear."},
                            {"attn.proj.", "attn1.to_out.0."},
                            {"mlp.fc1.", "ff.net.0.proj."},
                            {"mlp.fc2.", "ff.net.2."},
                            {"t_embedder.mlp.0.", "norm1.emb.timestep_embedder.linear_1."},
                            {"t_embedder.mlp.2.", "norm1.emb.timestep_embedder.linear_2."},
                            {"y_embedder.embedding_table.", "norm1.emb.class_embedder.embedding_table."}};
const Pairs kDiffusersEnds{{"x_embedder.proj.", "pos_embed.proj."},
                           {"final_layer.adaLN_modulation.1.", "proj_out_1."},
                           {"final_layer.linear.", "proj_out_2."}};
const std::string kMix = "piece_attn.conv.weight";  // [M, M, 1, 1]

// `name` with its beginning exchanged; `back`: published to ours.
std::string renamed(const std::string& name, const Pairs& pairs, bool back) {
  for (const auto& [ours, theirs] : pairs) {
    const std::string &from = back ? theirs : ours, &to = back ? ours : theirs;
    if (starts_with(name, from)) return to + name.substr(from.size());
  }
  return name;
}

// "blocks.12.attn.qkv.weight" into "blocks.12." and the rest; false for other names.
bool split_block(const std::string& name, const std::string& list, std::string& head, std::string& rest) {
  if (!starts_with(name, list)) return false;
  const std::size_t dot = name.find('.', list.size());
  if (dot == std::string::npos) return false;
  head = name.substr(0, dot + 1), rest = name.substr(dot + 1);
  return true;
}

// ---- Original names

Weights to_original(const DitConfig& c, Weights ours) {
  Weights published;
  std::string head, rest;
  for (auto& [name, value] : ours) {
    if (!split_block(name, "blocks.", head, rest)) {
      published[name] = value;
    } else if (c.is_mhla() && starts_with(rest, "attn.")) {
      const std::string own = rest.substr(5);
      if (own != "mix")
        published[head + "attn." + renamed(own, kMhlaNames, false)] = value;
      else if (c.attention == "mhla")
        published[head + "attn." + kMix] = value.unsqueeze(-1).unsqueeze(-1);
    } else if (rest == "mlp.gate_proj.weight" && c.family == "dig") {
      published[name] = torch::cat({value, ours.at(head + "mlp.up_proj.weight")});
    } else if (rest != "mlp.up_proj.weight") {
      published[name] = value;
    }
  }
  return published;
}

Weights from_original(const DitImpl& model, const Weights& published) {
  const DitConfig& c = model.config();
  Weights ours;
  std::string head, rest;
  for (const auto& [name, value] : published) {
    if (!split_block(name, "blocks.", head, rest)) {
      ours[name] = value;
    } else if (c.is_mhla() && rest == "attn." + kMix) {
      if (value.dim() < 4 || value.size(-1) != 1 || value.size(-2) != 1)
        fail("load_published: ", name, " has shape ", c10::str(value.sizes()), ", expected [M, M, 1, 1]");
      ours[head + "attn.mix"] = value.squeeze(-1).squeeze(-1);
    } else if (c.is_mhla() && starts_with(rest, "attn.")) {
      ours[head + "attn." + renamed(rest.substr(5), kMhlaNames, true)] = value;
    } else if (rest == "mlp.gate_proj.weight" && c.family == "dig" && value.size(0) % 2 == 0) {
      ours[name] = value.narrow(0, 0, value.size(0) / 2);
      ours[head + "mlp.up_proj.weight"] = value.narrow(0, value.size(0) / 2, value.size(0) / 2);
    } else {
      ours[name] = value;
    }
  }
  if (c.attention == "linear")  // its coefficient is 1 and in no file
    for (const AttentionLayer& layer : model.attention_layers())
      ours[layer.name + ".mix"] = state_of(*layer.attention).at("mix");
  return ours;
}

// ---- Names of diffusers

void expect_diffusers(const DitConfig& c) {
  if (c.attention != "softmax" || c.family != "dit" || c.lepe != 0 || c.cpe != 0 || c.dwconv != 0)
    fail("names of diffusers: the model is ", c.family, " with ", c.attention,
         c.lepe + c.cpe + c.dwconv != 0 ? " and convolutions" : "", ", expected dit with plain softmax attention");
}

Weights to_diffusers(const DitImpl& model, const Weights& ours) {
  const DitConfig& c = model.config();
  expect_diffusers(c);
  if (!torch::allclose(ours.at("pos_embed")[0].cpu().to(torch::kFloat), dit_positions(c), 1e-3, 1e-3))
    fail("names of diffusers: pos_embed is not the table of sines and cosines that diffusers computes");
  Weights published;
  std::string head, rest;
  for (const auto& [name, value] : ours) {
    if (name == "pos_embed") continue;
    if (!split_block(name, "blocks.", head, rest)) {
      if (!starts_with(name, "t_embedder.") && !starts_with(name, "y_embedder.")) {
        published[renamed(name, kDiffusersEnds, false)] = value;
        continue;
      }
      for (std::int64_t block = 0; block < c.depth; ++block)
        published[str("transformer_", "blocks.", block, ".", renamed(name, kDiffusersNames, false))] = value;
    } else if (starts_with(rest, "attn.qkv.")) {
      const std::vector<torch::Tensor> parts = value.chunk(3);
      const char* names[] = {"to_q.", "to_k.", "to_v."};
      for (std::size_t i = 0; i < 3; ++i)
        published["transformer_" + head + "attn1." + names[i] + rest.substr(9)] = parts[i];
    } else {
      published["transformer_" + head + renamed(rest, kDiffusersNames, false)] = value;
    }
  }
  return published;
}

Weights from_diffusers(const DitImpl& model, const Weights& published) {
  const DitConfig& c = model.config();
  expect_diffusers(c);
  Weights ours{{"pos_embed", dit_positions(c).unsqueeze(0)}};
  std::string head, rest;
  for (const auto& [name, value] : published) {
    if (!split_block(name, "transformer_blocks.", head, rest)) {
      ours[renamed(name, kDiffusersEnds, true)] = value;
      continue;
    }
    const std::string block = head.substr(std::string("transformer_").size());
    const std::string own = renamed(rest, kDiffusersNames, true);
    if (starts_with(rest, "attn1.to_q.")) {
      const std::string part = rest.substr(11), prefix = head + "attn1.";
      const auto k = published.find(prefix + "to_k." + part), v = published.find(prefix + "to_v." + part);
      if (k == published.end() || v == published.end()) continue;  // listed with what is missing
      ours[block + "attn.qkv." + part] = torch::cat({value, k->second, v->second});
    } else if (starts_with(rest, "attn1.to_k.") || starts_with(rest, "attn1.to_v.")) {
      continue;
    } else if (!starts_with(own, "t_embedder.") && !starts_with(own, "y_embedder.")) {
      ours[block + own] = value;
    } else if (c.own_embedders) {
      ours[block + own] = value;
    } else if (const auto [at, is_new] = ours.emplace(own, value); !is_new && !torch::equal(at->second, value)) {
      fail("load_published: ", name,
           " differs from that of another block, expected equal embedders, or a model with own_embedders");
    }
  }
  return ours;
}

Weights without_module(const Weights& published) {  // as data-parallel training saves it
  Weights weights;
  for (const auto& [name, value] : published) {
    const std::string bare = starts_with(name, "module.") ? name.substr(7) : name;
    if (!weights.emplace(bare, value).second) fail("load_published: ", bare, " is there with and without 'module.'");
  }
  return weights;
}

// Gives `model` that state, and the device, dtype and mode of `like`.
void settle(DitImpl& model, const DitImpl& like, const Weights& state) {
  const torch::Tensor parameter = like.parameters()[0];
  model.to(parameter.device(), parameter.scalar_type());
  load_state(model, state);
  model.train(like.is_training());
}

}  // namespace

DitNames dit_names_of(const Weights& published) {
  for (const auto& [name, value] : published) {
    const std::string bare = starts_with(name, "module.") ? name.substr(7) : name;
    if (starts_with(bare, "transformer_blocks.")) return DitNames::kDiffusers;
    if (starts_with(bare, "blocks.")) return DitNames::kOriginal;
  }
  fail(
      "weights: no name starts with 'blocks.' or 'transformer_blocks.', expected a DiT of the original code or of "
      "diffusers");
}

Weights published_weights(const DitImpl& model, DitNames names) {
  const DitConfig& c = model.config();
  const std::int64_t shift = names == DitNames::kDiffusers ? 1 : 0;
  if (c.freq_shift != shift)
    fail("published_weights: freq_shift is ", c.freq_shift, ", expected ", shift,
         ": a model under these names computes its times with that");
  if (names == DitNames::kDiffusers) return to_diffusers(model, state_of(model));
  if (c.own_embedders)
    fail(
        "published_weights: own_embedders is true, expected false: the original model has one embedder for all blocks");
  return to_original(c, state_of(model));
}

void load_published(DitImpl& model, const Weights& published) {
  const Weights weights = without_module(published);
  const bool diffusers = dit_names_of(weights) == DitNames::kDiffusers;
  copy_weights(state_of(model), diffusers ? from_diffusers(model, weights) : from_original(model, weights),
               "load_published");
}

Dit resized(const DitImpl& model, const DitConfig& config) {
  DitConfig same = config;
  const DitConfig& from = model.config();
  same.image = from.image, same.blocks = from.blocks, same.pos_base = from.pos_base, same.pos_scale = from.pos_scale;
  if (same != from) fail("resized: config differs from the model's in more than image, blocks and positions");
  Dit other(config);
  Weights state = state_of(model), start = state_of(*other);
  const Layout &grid = model.attention_layers()[0].layout, &target = other->attention_layers()[0].layout;
  const torch::Tensor table = state.at("pos_embed").cpu().to(torch::kFloat);
  const bool formula = torch::allclose(table[0], dit_positions(from), 1e-3, 1e-3);
  state["pos_embed"] = formula ? start.at("pos_embed") : resampled_table(table, grid, target);
  for (std::size_t i = 0; i < model.attention_layers().size(); ++i) {
    const AttentionLayer &layer = model.attention_layers()[i], &turned = other->attention_layers()[i];
    const auto mix = state.find(layer.name + ".mix");
    if (mix != state.end()) mix->second = resampled_mix(mix->second, layer.layout, turned.layout);
    const auto positions = state.find(layer.name + ".positional_encoding");  // of focused attention
    if (positions != state.end()) positions->second = resampled_table(positions->second, layer.layout, turned.layout);
  }
  settle(*other, model, state);
  return other;
}

Dit with_attention(const DitImpl& model, const DitConfig& config) {
  const DitConfig& from = model.config();
  if ((from.attention != "softmax" && from.attention != "linear") || !config.is_mhla())
    fail("with_attention: from ", from.attention, " to ", config.attention,
         ", expected softmax or linear to mhla or linear");
  DitConfig same = from;
  same.attention = config.attention, same.official = config.official, same.blocks = config.blocks;
  same.lepe = config.lepe, same.gate = config.gate, same.head_norm = config.head_norm, same.qk_norm = config.qk_norm;
  same.features = config.features, same.normalizer = config.normalizer, same.mix_init = config.mix_init;
  same.mix_sigma = config.mix_sigma, same.mix_range = config.mix_range, same.learn_mix = config.learn_mix;
  same.mix_per_head = config.mix_per_head, same.model = config.model;
  if (same != config) fail("with_attention: config differs from the model's in more than its attention");
  Dit other(config);
  Weights state = state_of(*other);
  for (const auto& [name, value] : state_of(model)) {
    std::string own = name, head, rest;
    if (split_block(name, "blocks.", head, rest) && starts_with(rest, "attn.proj."))
      own = head + "attn.out." + rest.substr(10);
    const auto place = state.find(own);
    if (rest == "attn.mix" || place == state.end()) continue;
    place->second = value;
  }
  settle(*other, model, state);
  return other;
}

void save_dit(const DitImpl& model, const std::filesystem::path& folder) {
  OutputFolder place(folder);
  write_weights(place.claim(kWeightsFile), state_of(model), {{"format", "pt"}});
  write_file(place.claim(kConfigFile), write_json(fields_to_json(model.config()), 2) + "\n");
  place.keep();
}

Dit load_dit(const std::filesystem::path& folder) {
  Dit model(read_dit_config(folder / kConfigFile));
  const std::filesystem::path file = folder / kWeightsFile;
  labelled(file.string(), [&] { load_state(*model, read_weights(file)); });
  return model;
}

}  // namespace mhla
