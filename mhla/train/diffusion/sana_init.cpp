// A SANA that starts from the weights of another one: any of its names, another attention, other blocks.
#include "mhla/core/error.h"
#include "mhla/train/diffusion/diffusion_init.h"

namespace mhla::train {
namespace {

const std::string kUnusedCaption = "y_embedder.y_embedding";  // of its own, where the length of captions differs

// The source's configuration, of which only what the attention is made of may differ from the model's.
SanaConfig source_sana(const SanaConfig& own, const InitSource& source) {
  if (source.maybe_config.empty()) return own;  // a file by itself: its names and shapes are all there is
  SanaConfig theirs = read_sana_config(source.maybe_config);
  const std::set<std::string> may_differ{"model",  "attention", "caption_tokens", "eps",       "features",
                                         "blocks", "mix_init",  "mix_sigma",      "mix_range", "learn_mix"};
  expect_same_network(source, fields_to_json(theirs), fields_to_json(own), may_differ);
  theirs.model = own.model;
  return theirs;
}

}  // namespace

std::vector<std::string> start_sana(SanaImpl& model, const InitSource& source) {
  const SanaConfig& own = model.config();
  const SanaConfig theirs = source_sana(own, source);
  Weights state;
  try {
    Sana given(theirs);
    load_published(*given, read_init(source));
    SanaConfig target = own;
    target.caption_tokens = theirs.caption_tokens;
    if (given->config() != target) given = with_attention(*given, target);
    state = state_of(*given);
  } catch (const Error& error) {
    fail("train: init is ", source.name, ": ", source.file.filename().string(), ": ", error.what());
  }
  std::vector<std::string> changes;
  if (theirs.attention != own.attention)
    changes.push_back(str(own.attention, " attention from the weights of ", theirs.attention,
                          own.attention == "mhla" ? str(", mixing ", own.mix_init, " at first") : std::string()));
  else if (theirs.blocks != own.blocks && own.attention == "mhla")
    changes.emplace_back("mixing matrices resized to other blocks");
  Weights mine = state_of(model);
  if (theirs.caption_tokens != own.caption_tokens) {
    changes.push_back(
        str("captions of ", own.caption_tokens, " tokens, not the ", theirs.caption_tokens, " of the weights"));
    state.erase(kUnusedCaption), mine.erase(kUnusedCaption);
  }
  copy_weights(mine, state, "start_from");
  return changes;
}

}  // namespace mhla::train
