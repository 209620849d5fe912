#include "mhla/train/diffusion/diffusion_init.h"

#include "mhla/core/error.h"

namespace mhla::train {
namespace {

// What weights of the same shapes and the same meaning may differ in, besides what is changed here.
const std::set<std::string> kFree{"model",     "classes",  "label_dropout", "image",     "blocks",   "pos_base",
                                  "pos_scale", "mix_init", "mix_sigma",     "mix_range", "learn_mix"};
const std::set<std::string> kOfAttention{"attention", "official", "lepe",       "gate",        "head_norm",
                                         "qk_norm",   "features", "normalizer", "mix_per_head"};
const std::string kClassTable = "y_embedder.embedding_table.weight";

bool is_class_table(const std::string& name) {
  return name.size() >= kClassTable.size() &&
         name.compare(name.size() - kClassTable.size(), kClassTable.size(), kClassTable) == 0;
}

// The fields of attention as `own` has them.
DitConfig with_attention_fields(DitConfig c, const DitConfig& own) {
  c.attention = own.attention, c.official = own.official, c.lepe = own.lepe, c.gate = own.gate;
  c.head_norm = own.head_norm, c.qk_norm = own.qk_norm, c.features = own.features, c.normalizer = own.normalizer;
  c.mix_per_head = own.mix_per_head, c.blocks = own.blocks;
  return c;
}

// The network of the source with what is free as the model has it.
DitConfig source_network(const DitConfig& own, const InitSource& source, const Weights& weights, bool own_names) {
  DitConfig network = own;
  if (source.maybe_config.empty()) {  // a file by itself
    if (!own_names) return dit_config_for(weights, own);
    for (const auto& [name, table] : weights) {
      if (is_class_table(name) && table.dim() == 2) network.classes = table.size(0) - (own.has_null_class() ? 1 : 0);
    }
    return network;
  }
  const DitConfig theirs = read_dit_config(source.maybe_config);
  std::set<std::string> may_differ = kFree;
  const bool other_attention = theirs.attention != own.attention;
  if (other_attention) may_differ.insert(kOfAttention.begin(), kOfAttention.end());
  expect_same_network(source, fields_to_json(theirs), fields_to_json(own), may_differ);
  network = theirs;
  network.model = own.model, network.mix_init = own.mix_init, network.mix_sigma = own.mix_sigma;
  network.mix_range = own.mix_range, network.learn_mix = own.learn_mix;
  return network;
}

// Rows of classes from `theirs` where the classes are as many, of the null class where both have one; others as seeded.
torch::Tensor class_table(const torch::Tensor& seeded, const torch::Tensor& theirs, const DitConfig& own,
                          const DitConfig& from) {
  torch::Tensor table = seeded.clone();
  if (own.classes == from.classes) table.narrow(0, 0, own.classes).copy_(theirs.narrow(0, 0, own.classes));
  if (own.has_null_class() && from.has_null_class()) table[own.classes].copy_(theirs[from.classes]);
  return table;
}

std::string size_text(const std::array<std::int64_t, 2>& size) { return str(size[0], "x", size[1]); }

}  // namespace

std::vector<std::string> start_dit(DitImpl& model, const InitSource& source) {
  const Weights weights = read_init(source);
  const DitConfig& own = model.config();
  const bool own_names =
      !source.maybe_config.empty() || has_own_names(state_of(model), published_weights(model), weights);
  const DitConfig theirs = source_network(own, source, weights, own_names);
  Weights state;
  try {
    Dit given(theirs);
    if (own_names)
      load_state(*given, weights);
    else
      load_published(*given, weights);
    if (theirs.attention != own.attention) given = with_attention(*given, with_attention_fields(theirs, own));
    DitConfig target = own;
    target.classes = theirs.classes, target.label_dropout = theirs.label_dropout;
    if (given->config() != target) given = resized(*given, target);
    state = state_of(*given);
  } catch (const Error& error) {
    fail("train: init is ", source.name, ": ", source.file.filename().string(), ": ", error.what());
  }
  std::vector<std::string> changes;
  for (const auto& [name, seeded] : state_of(model)) {
    if (is_class_table(name)) state[name] = class_table(seeded, state.at(name), own, theirs);
  }
  if (theirs.classes != own.classes)
    changes.push_back(str("new embeddings of ", own.classes, " classes, not the ", theirs.classes, " of the weights"));
  if (own.has_null_class() && !theirs.has_null_class()) changes.emplace_back("a new embedding of the null class");
  if (theirs.image != own.image)
    changes.push_back(str("resized to samples of ", size_text(own.image), " from ", size_text(theirs.image)));
  if (theirs.blocks != own.blocks && own.attention == "mhla" && theirs.attention == "mhla")
    changes.emplace_back("mixing matrices resized to other blocks");
  if (theirs.attention != own.attention)
    changes.push_back(str(own.attention, " attention from the weights of ", theirs.attention));
  load_state(model, state);
  return changes;
}

std::vector<std::string> start_from(const DiffusionModel& model, const InitSource& source,
                                    const GenerationConfig& generation) {
  const torch::NoGradGuard no_gradient;
  std::vector<std::string> changes =
      model.config().takes_captions() ? start_sana(model.sana(), source) : start_dit(model.dit(), source);
  const GenerationConfig before =
      source.maybe_folder.empty() ? generation : read_generation_config(source.maybe_folder, generation);
  if (before.process != generation.process)
    changes.push_back(str("process ", generation.process, ", not the ", before.process, " of the weights"));
  else if (!generation.is_flow() && before.schedule != generation.schedule)
    changes.push_back(str("schedule ", generation.schedule, ", not the ", before.schedule, " of the weights"));
  else if (generation.is_flow() && before.shift != generation.shift)
    changes.push_back(str("shift ", generation.shift, ", not the ", before.shift, " of the weights"));
  return changes;
}

}  // namespace mhla::train
