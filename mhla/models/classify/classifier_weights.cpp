// The weights of an image model: its state, under published names, at another image size, in a folder.
#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/models/published_names.h"
#include "mhla/models/resampled.h"
#include "mhla/models/transformers_config.h"
#include "mhla/models/weights_file.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/modules/zoo/gated_image.h"
#include "mhla/modules/zoo/zoo.h"

namespace mhla {
namespace {

constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";
const std::string kMixName = "piece_attn.conv.weight";  // [M, M, 1, 1]

// Moves those weights whose names start with `prefix` out of `weights`, without it.
Weights take(Weights& weights, const std::string& prefix) {
  Weights taken;
  for (auto it = weights.begin(); it != weights.end();) {
    const bool mine = starts_with(it->first, prefix);
    if (mine) taken[it->first.substr(prefix.size())] = it->second;
    it = mine ? weights.erase(it) : std::next(it);
  }
  return taken;
}

void put(Weights& weights, const std::string& prefix, const Weights& layer) {
  for (const auto& [name, value] : layer) weights[prefix + name] = value;
}

// "image" and "linear" of weight_names.h in DeiT; none where the layer has the published names already.
std::string_view family_of(const ClassifierConfig& c) {
  if (c.family == "vlt") return {};
  if (c.attention == "mhla") return "image";
  return c.attention == "linear" ? "linear" : std::string_view();
}

// ---- VLT's layers: q, k, v and the gate are one 1x1 convolution.

bool is_gated_core(const AttentionLayer& layer) {
  return layer.attention->as<MhlaAttentionImpl>() != nullptr ||
         layer.attention->as<GatedImageAttentionImpl>() != nullptr;
}

torch::Tensor with_ones(const torch::Tensor& weight) { return weight.unsqueeze(-1).unsqueeze(-1); }

Weights vlt_to_published(const AttentionLayer& layer, Weights ours) {
  if (!is_gated_core(layer)) return ours;
  Weights published;
  if (layer.attention->as<MhlaAttentionImpl>() == nullptr) {
    published = std::move(ours);
  } else {
    for (const char* part : {".weight", ".bias"}) {
      published[str("qkvo", part)] = torch::cat({ours.at(str("qkv", part)), ours.at(str("gate", part))});
      published[str("proj", part)] = ours.at(str("out", part));
    }
    for (const auto& [name, value] : ours) {
      if (starts_with(name, "lepe.") || starts_with(name, "q_norm.") || starts_with(name, "k_norm."))
        published[name] = value;
    }
    if (layer.attention->as<MhlaAttentionImpl>()->options().learn_mix || ours.at("mix").numel() > 1)
      published[kMixName] = with_ones(ours.at("mix"));
  }
  for (const char* name : {"qkvo.weight", "proj.weight"}) published[name] = with_ones(published.at(name));
  return published;
}

Weights vlt_from_published(const AttentionLayer& layer, Weights published) {
  if (!is_gated_core(layer)) return published;
  for (const char* name : {"qkvo.weight", "proj.weight"}) {
    if (published.count(name) != 0) published[name] = published.at(name).flatten(1);
  }
  auto* mhla = layer.attention->as<MhlaAttentionImpl>();
  if (mhla == nullptr) return published;
  const std::int64_t dim = mhla->options().dim;
  Weights ours = std::move(published);
  for (const char* part : {".weight", ".bias"}) {
    const std::string qkvo = str("qkvo", part), proj = str("proj", part);
    if (ours.count(qkvo) != 0 && ours.at(qkvo).size(0) == 4 * dim) {
      ours[str("qkv", part)] = ours.at(qkvo).narrow(0, 0, 3 * dim);
      ours[str("gate", part)] = ours.at(qkvo).narrow(0, 3 * dim, dim);
      ours.erase(qkvo);
    }
    if (ours.count(proj) != 0) ours[str("out", part)] = ours.at(proj), ours.erase(proj);
  }
  if (ours.count(kMixName) != 0) {
    ours["mix"] = ours.at(kMixName).flatten(-3);
    ours.erase(kMixName);
  }
  return ours;
}

// The table of rotations that VLT keeps as a buffer of every stage.
torch::Tensor vlt_angles(std::int64_t head_dim) {
  const torch::Tensor turns = torch::pow(10000.0, -torch::linspace(0, 1, head_dim / 4, torch::kFloat));
  return turns.unsqueeze(-1).repeat({1, 2}).flatten();
}

}  // namespace

Weights state_of(const torch::nn::Module& module) {
  Weights state = weights_of(module);
  for (const auto& item : module.named_buffers()) state[item.key()] = item.value().detach();
  return state;
}

void load_state(torch::nn::Module& module, const Weights& state) {
  copy_weights(state_of(module), state, "load_state");
}

AnyClassifier resized(const Classifier& model, const ClassifierConfig& config) {
  ClassifierConfig same = config;
  same.image = model.config().image, same.pad = model.config().pad, same.blocks = model.config().blocks;
  if (same != model.config()) fail("resized: config differs from the model's in more than image, pad and blocks");
  AnyClassifier other = make_classifier(config);
  Weights state = state_of(model);
  const auto tables = model.position_tables(), other_tables = other->position_tables();
  for (std::size_t i = 0; i < tables.size(); ++i)
    state[tables[i].first] = resampled_table(state.at(tables[i].first), tables[i].second, other_tables[i].second);
  for (std::size_t i = 0; i < model.attention_layers().size(); ++i) {
    const AttentionLayer& layer = model.attention_layers()[i];
    const auto mix = state.find(layer.name + ".mix");
    if (mix != state.end()) mix->second = resampled_mix(mix->second, layer.layout, other->attention_layers()[i].layout);
  }
  const torch::Tensor like = model.parameters()[0];
  other->to(like.device(), like.scalar_type());
  load_state(*other, state);
  other->train(model.is_training());
  return other;
}

AnyClassifier with_attention(const Classifier& model, const ClassifierConfig& config) {
  const ClassifierConfig& from = model.config();
  if (from.attention != "softmax" || (config.attention != "mhla" && config.attention != "linear"))
    fail("with_attention: from ", from.attention, " to ", config.attention, ", expected softmax to mhla or linear");
  if (config.family == "deit" && !config.qkv_bias)
    fail("with_attention: qkv_bias is false, expected true: softmax attention has biases");
  ClassifierConfig same = config;
  same.attention = from.attention, same.qkv_bias = from.qkv_bias, same.qk_norm = from.qk_norm;
  same.blocks = from.blocks, same.features = from.features, same.normalizer = from.normalizer;
  same.mix_init = from.mix_init, same.mix_sigma = from.mix_sigma, same.mix_range = from.mix_range;
  same.pos_init = from.pos_init, same.init_std = from.init_std;
  same.learn_mix = from.learn_mix, same.mix_per_head = from.mix_per_head, same.model = from.model;
  if (same != from) fail("with_attention: config differs from the model's in more than its attention");
  AnyClassifier other = make_classifier(config);
  Weights state = state_of(model), start = state_of(*other);
  for (const AttentionLayer& layer : other->attention_layers()) {
    if (layer.attention->as<MhlaAttentionImpl>() == nullptr) continue;  // the softmax stages of vlt
    const std::string prefix = layer.name + ".";
    Weights theirs = take(state, prefix);
    Weights ours = take(start, prefix);
    if (config.family == "vlt") theirs = vlt_from_published(layer, std::move(theirs));
    for (auto& [name, value] : theirs) {
      const std::string own = starts_with(name, "proj.") ? "out." + name.substr(5) : name;
      ours[own] = value;
    }
    put(state, prefix, ours);
  }
  load_state(*other, state);
  other->train(model.is_training());
  return other;
}

Weights published_weights(const Classifier& model) {
  const ClassifierConfig& c = model.config();
  Weights weights = state_of(model);
  const std::string_view family = family_of(c);
  for (const AttentionLayer& layer : model.attention_layers()) {
    const std::string prefix = layer.name + ".";
    Weights ours = take(weights, prefix);
    if (c.family == "vlt") {
      ours = vlt_to_published(layer, std::move(ours));
    } else if (!family.empty()) {
      const auto* mhla = layer.attention->as<MhlaAttentionImpl>();
      if (family == "linear") ours.erase("mix");  // which is 1
      ours = to_published(ours, family, mhla->widths());
    }
    put(weights, prefix, ours);
  }
  if (c.family == "vlt") {
    for (std::size_t stage = 0; stage < c.dims.size(); ++stage)
      weights[str("layers.", stage, ".RoPE.angle")] = vlt_angles(c.dims[stage] / c.heads[stage]);
  }
  return weights;
}

void load_published(Classifier& model, const Weights& published) {
  const ClassifierConfig& c = model.config();
  Weights weights;
  for (const auto& [name, value] : published) {
    const std::string bare =
        starts_with(name, "module.") ? name.substr(7) : name;  // as data-parallel training saves it
    if (weights.count(bare) != 0) fail("load_published: ", bare, " is there with and without 'module.'");
    if (name.find(".num_batches_tracked") == std::string::npos) weights[bare] = value;  // a count that nothing reads
  }
  const Weights own = state_of(model);
  const std::string_view family = family_of(c);
  if (c.family == "vlt") {
    for (std::size_t stage = 0; stage < c.dims.size(); ++stage) weights.erase(str("layers.", stage, ".RoPE.angle"));
  }
  for (const AttentionLayer& layer : model.attention_layers()) {
    const std::string prefix = layer.name + ".";
    Weights theirs = take(weights, prefix);
    if (theirs.empty()) continue;  // listed with what else is missing
    try {
      if (c.family == "vlt")
        theirs = vlt_from_published(layer, std::move(theirs));
      else if (!family.empty())
        theirs = from_published(theirs, family);
    } catch (const Error& error) {
      fail("load_published: ", layer.name, ": ", error.what());
    }
    const auto mix = own.find(prefix + "mix");
    if (mix != own.end() && mix->second.numel() == 1 && theirs.count("mix") == 0) theirs["mix"] = mix->second;
    put(weights, prefix, theirs);
  }
  copy_weights(own, weights, "load_published");
}

void save_classifier(const Classifier& model, const std::filesystem::path& folder) {
  OutputFolder place(folder);
  write_weights(place.claim(kWeightsFile), state_of(model), {{"format", "pt"}});
  write_file(place.claim(kConfigFile), write_json(for_transformers(fields_to_json(model.config())), 2) + "\n");
  place.keep();
}

AnyClassifier load_classifier(const std::filesystem::path& folder) {
  const ClassifierConfig config = read_classifier_config(folder / kConfigFile);
  AnyClassifier model = make_classifier(config);
  const std::filesystem::path file = folder / kWeightsFile;
  labelled(file.string(), [&] { load_state(*model, read_weights(file)); });
  return model;
}

}  // namespace mhla
