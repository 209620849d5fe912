#include "mhla/train/classify/classify_init.h"

#include "mhla/core/error.h"

namespace mhla::train {
namespace {

// What weights of the same shapes and the same meaning may differ in, besides what adapted() changes.
const std::set<std::string> kFree{"model",    "image",     "pad",       "blocks",    "classes",
                                  "mix_init", "mix_sigma", "mix_range", "learn_mix", "pos_init",
                                  "init_std", "drop_path", "dropout"};
const std::set<std::string> kOfAttention{"attention", "qkv_bias", "qk_norm", "features", "normalizer", "mix_per_head"};

// The network of the source with what is free as the model has it.
ClassifierConfig source_network(const ClassifierConfig& own, const InitSource& source, const Weights& weights) {
  ClassifierConfig network = own;
  if (source.maybe_config.empty()) {  // a file by itself: all it says is its number of classes
    const auto head = weights.find("head.weight");
    if (head != weights.end() && head->second.dim() > 0) network.classes = head->second.size(0);
    return network;
  }
  const ClassifierConfig theirs = read_classifier_config(source.maybe_config);
  std::set<std::string> may_differ = kFree;
  const bool other_attention = theirs.attention != own.attention;
  if (other_attention) may_differ.insert(kOfAttention.begin(), kOfAttention.end());
  expect_same_network(source, fields_to_json(theirs), fields_to_json(own), may_differ);
  network.image = theirs.image, network.pad = theirs.pad, network.blocks = theirs.blocks;
  network.classes = theirs.classes;
  if (other_attention) {
    network.attention = theirs.attention, network.qkv_bias = theirs.qkv_bias, network.qk_norm = theirs.qk_norm;
    network.features = theirs.features, network.normalizer = theirs.normalizer;
    network.mix_per_head = theirs.mix_per_head;
  }
  return network;
}

std::string size_text(const std::array<std::int64_t, 2>& size) { return str(size[0], "x", size[1]); }

}  // namespace

std::vector<std::string> start_from(Classifier& model, const InitSource& source) {
  const Weights weights = read_init(source);
  const ClassifierConfig &own = model.config(), theirs = source_network(own, source, weights);
  AnyClassifier given = make_classifier(theirs);
  try {
    if (!source.maybe_config.empty() || has_own_names(state_of(*given), published_weights(*given), weights))
      load_state(*given, weights);
    else
      load_published(*given, weights);
    given = adapted(given, own);
  } catch (const Error& error) {
    fail("train: init is ", source.name, ": ", source.file.filename().string(), ": ", error.what());
  }
  Weights state = state_of(*given);
  std::vector<std::string> changes;
  if (theirs.classes != own.classes) {
    for (auto& [name, value] : state_of(model))  // as seeded
      if (name.rfind("head.", 0) == 0) state[name] = value;
    changes.push_back(str("a new head for ", own.classes, " classes, not the ", theirs.classes, " of the weights"));
  }
  if (theirs.image != own.image)
    changes.push_back(str("resized to images of ", size_text(own.image), " from ", size_text(theirs.image)));
  if (theirs.blocks != own.blocks && own.attention == "mhla" && theirs.attention == "mhla")
    changes.emplace_back("mixing matrices resized to other blocks");
  if (theirs.attention != own.attention)
    changes.push_back(str(own.attention, " attention from the weights of ", theirs.attention));
  load_state(model, state);
  return changes;
}

}  // namespace mhla::train
