#include "mhla/train/video/video_init.h"

#include <algorithm>

#include "mhla/core/error.h"

namespace mhla::train {
namespace {

constexpr double kOpenGate = 1.2784645427610738;  // SiLU of it is 1

// What weights of the same shapes and the same meaning may differ in, besides what is changed here.
const std::set<std::string> kFreeOfVideo{
    "model", "family",   "attention", "layers",         "blocks",   "features",  "normalizer", "gate",
    "lepe",  "mix_init", "mix_sigma", "normalizer_eps", "official", "mix_range", "learn_mix",  "text_tokens"};

// "blocks.3." of "blocks.3.self_attn.mix"; empty: another name, or a layer's name that all attentions have.
std::string layer_of_special(const std::string& name) {
  for (const char* part : {".self_attn.mix", ".self_attn.g_norm.", ".self_attn.g.", ".self_attn.lepe."})
    if (const std::size_t at = name.find(part); at != std::string::npos) return name.substr(0, at + 1);
  return {};
}

bool all_softmax(const Weights& given) {
  for (const auto& [name, value] : given)
    if (name.find(".g_norm.") != std::string::npos) return false;
  return true;
}

// The weights of a file under our names, which are those of a run, or published ones.
Weights with_own_names(const WanConfig& theirs, const Weights& given) {
  Wan model(theirs);
  const Weights own = weights_of(*model);
  const bool ours = std::all_of(own.begin(), own.end(), [&](const auto& item) { return given.count(item.first) != 0; });
  if (ours)
    copy_weights(own, given, "start_from");
  else
    load_published(*model, given);
  return own;
}

}  // namespace

std::vector<std::string> start_from(WanImpl& model, const InitSource& source) {
  const torch::NoGradGuard no_gradient;
  const WanConfig& own = model.config();
  const Weights file = read_init(source);
  WanConfig theirs = own;
  if (source.maybe_config.empty()) {
    if (all_softmax(file)) theirs.attention = "softmax", theirs.layers.clear();
  } else {
    theirs = read_wan_config(source.maybe_config);
    expect_same_network(source, fields_to_json(theirs), fields_to_json(own), kFreeOfVideo);
  }
  Weights given;
  try {
    given = with_own_names(theirs, file);
  } catch (const Error& error) {
    fail("train: init is ", source.name, ": ", source.file.filename().string(), ": ", error.what());
  }
  std::int64_t changed = 0, resized = 0;
  for (const auto& [name, value] : weights_of(model)) {
    const auto found = given.find(name);
    const std::string layer = layer_of_special(name);
    if (found != given.end() && found->second.sizes() == value.sizes()) {
      value.copy_(found->second);
    } else if (layer.empty()) {
      fail("train: init is ", source.name, ", whose ", name,
           found == given.end() ? " is missing" : " has another shape");
    } else {
      if (found != given.end()) ++resized;
      if (name.ends_with(".g.weight")) value.zero_();
      if (name.ends_with(".g.bias")) value.fill_(kOpenGate);
    }
  }
  for (std::int64_t layer = 0; layer < own.depth; ++layer)
    if (own.attention_of(layer) != theirs.attention_of(layer)) ++changed;
  std::vector<std::string> changes;
  if (changed > 0)
    changes.push_back(str(own.attention == "softmax" ? theirs.attention : own.attention, " attention ",
                          own.attention == "softmax" ? "replaced in " : "in ", changed, " of ", own.depth,
                          " layers, from weights of ", theirs.attention, " attention"));
  if (resized > 0) changes.push_back(str("new mixing matrices or convolutions in ", resized, " layers: other blocks"));
  return changes;
}

}  // namespace mhla::train
