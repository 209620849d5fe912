// The language model of a run of `mhla train lm`, finished or not, opened to be used.
#pragma once

#include <filesystem>
#include <string>

#include "mhla/train/lm/lm_task.h"
#include "mhla/train/observer.h"
#include "mhla/train/runs/open_options.h"

namespace mhla::train {

// A run of `mhla train lm`, or a folder with config.json, model.safetensors and tokenizer.json.
struct LmRun {
  LmOptions options;              // of train.json where there is one, with what OpenOptions change
  std::filesystem::path weights;  // the file they came from
  LanguageModel model{nullptr};   // on its device, in f32
  TokenizerPtr maybe_tokenizer;   // none: trained on ids that are no text
};
// Threads, device and seed are set. Errors open with `command`.
LmRun open_lm_run(const std::string& command, const OpenOptions& open, Observer& observer);
// The length policy, or "none" where it does nothing: attention without chunks takes any length.
std::string policy_of(const LanguageModelImpl& model);
// Its tokenizer; an Error where it has none.
TokenizerPtr text_of(const std::string& command, const LmRun& run);

}  // namespace mhla::train
