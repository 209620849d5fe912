// The weights of a language model under published names, and in a folder.
#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/models/lm/lm.h"
#include "mhla/models/transformers_config.h"
#include "mhla/models/weights_file.h"
#include "mhla/modules/mhla_attention.h"

namespace mhla {
namespace {

constexpr const char* kLmWeightsEntry = "load_published";
constexpr const char* kHead = "lm_head.weight";

// The family of weight_names.h; none where the layer has the published names already.
std::string_view family_of(const LmConfig& c) {
  if (c.attention == "mhla") return c.gate ? "lm_gated" : "lm";
  if (c.attention == "linear") return c.gate ? "lm_linear_gated" : "lm_linear";
  return c.attention == "softmax" ? "lm_softmax" : std::string_view();
}

std::string prefix_of(std::size_t layer) { return str("model.layers.", layer, ".attn."); }

std::vector<std::int64_t> widths_of(const LmConfig& c, const Attention& attention) {
  const auto* mhla = attention.as<MhlaAttentionImpl>();
  return mhla != nullptr ? mhla->widths() : std::vector<std::int64_t>{c.dim, c.dim, c.dim};
}

// Moves those weights whose names start with `prefix` out of `weights`, without it.
Weights take(Weights& weights, const std::string& prefix) {
  Weights taken;
  for (auto it = weights.lower_bound(prefix); it != weights.end() && it->first.rfind(prefix, 0) == 0;) {
    taken[it->first.substr(prefix.size())] = it->second;
    it = weights.erase(it);
  }
  return taken;
}

void put(Weights& weights, const std::string& prefix, const Weights& layer) {
  for (const auto& [name, value] : layer) weights[prefix + name] = value;
}

}  // namespace

Weights published_weights(const LanguageModelImpl& model) {
  const LmConfig& c = model.config();
  Weights weights = weights_of(model);
  const std::string_view family = family_of(c);
  for (std::size_t layer = 0; !family.empty() && layer < model.blocks().size(); ++layer) {
    const std::string prefix = prefix_of(layer);
    Weights ours = take(weights, prefix);
    if (c.attention == "linear") ours.erase("mix");  // which is 1
    put(weights, prefix, to_published(ours, family, widths_of(c, *model.blocks()[layer]->attention())));
  }
  return weights;
}

void load_published(LanguageModelImpl& model, const Weights& published) {
  const LmConfig& c = model.config();
  Weights weights;
  for (const auto& [name, value] : published) {
    const std::string bare = name.rfind("module.", 0) == 0 ? name.substr(7) : name;  // as data-parallel training saves
    if (!weights.emplace(bare, value).second) fail(kLmWeightsEntry, ": ", bare, " is there with and without 'module.'");
  }
  if (const auto head = weights.find(kHead); c.tied && head != weights.end()) {
    const auto table = weights.find("model.embeddings.weight");
    if (table != weights.end() && !torch::equal(head->second, table->second))
      fail(kLmWeightsEntry, ": ", kHead, " differs from model.embeddings.weight, expected tied tables, or tied false");
    weights.erase(head);
  }
  expect_weights(published_weights(model), weights, kLmWeightsEntry);  // so that errors have the names of the file
  const Weights own = weights_of(model);
  const std::string_view family = family_of(c);
  for (std::size_t layer = 0; !family.empty() && layer < model.blocks().size(); ++layer) {
    const std::string prefix = prefix_of(layer);
    Weights ours = from_published(take(weights, prefix), family);
    if (c.attention == "linear") ours["mix"] = own.at(prefix + "mix");
    put(weights, prefix, ours);
  }
  copy_weights(own, weights, kLmWeightsEntry);
}

void save_language_model(const LanguageModelImpl& model, const std::filesystem::path& folder) {
  OutputFolder place(folder);
  write_weights(place.claim("model.safetensors"), weights_of(model), {{"format", "pt"}});
  write_file(place.claim("config.json"), write_json(for_transformers(fields_to_json(model.config())), 2) + "\n");
  place.keep();
}

LanguageModel load_language_model(const std::filesystem::path& folder) {
  LanguageModel model(read_lm_config(folder / "config.json"));
  const std::filesystem::path file = folder / "model.safetensors";
  labelled(file.string(), [&] { load_weights(*model, read_weights(file)); });
  return model;
}

}  // namespace mhla
