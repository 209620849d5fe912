// `mhla train lm` and `mhla eval lm` for the table of apps/engine/engine.h, and a trained language model opened from
// its folder.
#pragma once

#include "apps/engine/requests.h"
#include "mhla/train/lm/lm_task.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Both throw mhla::Error for the caller's mistakes and mhla::RunFailed for what fails on the way.
void train_lm(const TrainRequest<train::LmOptions>& request, train::Observer& observer);
void eval_lm(const EvalLmRequest& request, train::Observer& observer);

// A run of `mhla train lm`, or a folder with config.json, model.safetensors and tokenizer.json.
struct LmRun {
  train::LmOptions options;       // of train.json where there is one, with what the request changes
  std::filesystem::path weights;  // the file they came from
  LanguageModel model{nullptr};   // on its device, in f32
  TokenizerPtr maybe_tokenizer;   // none: trained on ids that are no text
};
// Threads, device and seed are set. Errors open with `command`.
LmRun open_lm_run(const std::string& command, const train::OpenOptions& open, train::Observer& observer);
// The length policy, or "none" where it does nothing: attention without chunks takes any length.
std::string policy_of(const LanguageModelImpl& model);
// Its tokenizer; an Error where it has none.
TokenizerPtr text_of(const std::string& command, const LmRun& run);

}  // namespace mhla::apps
