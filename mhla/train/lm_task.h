// Language modelling as a Task: a LanguageModel, token batches, the chunked cross entropy. A sample is a token that has
// a target.
#pragma once

#include <optional>

#include "mhla/models/lm/lm.h"
#include "mhla/train/data/token_loader.h"
#include "mhla/train/lm_eval.h"
#include "mhla/train/lm_options.h"
#include "mhla/train/task.h"

namespace mhla::train {

// Throws mhla::Error naming the option, its value and what is expected.
void check(const LmOptions& options);

// The folder of tokens that the options name. Text becomes tokens there on first use, and `told` gets a line about it.
// Tokens that are there already must be those of the same text, tokenizer and held-out part.
std::string token_folder(const LmOptions& options, const std::string& run,
                         const std::function<void(const std::string&)>& told);

struct LmData {
  TokenSet train;
  std::optional<TokenSet> valid;  // none: nothing is held out
};
LmData open_tokens(const std::string& folder);

// The network of the options, with the vocabulary of the tokens where it does not say otherwise.
LmConfig network_of(const LmOptions& options, const TokenSetInfo& info);
// Every choice that was left open (context) filled in.
LmOptions resolved(const LmOptions& options, const LmConfig& network);

class LmTask : public Task {
 public:
  // Seeded by prepare() before: the model's weights are drawn here.
  LmTask(const LmOptions& options, LmData data, const LmConfig& network);

  torch::nn::Module& model() override { return *model_; }
  [[nodiscard]] JsonValue model_config() const override { return fields_to_json(model_->config()); }
  [[nodiscard]] const char* samples() const override { return "tokens"; }
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return loader_->batches_per_epoch(); }
  BatchResult forward_next() override;
  [[nodiscard]] JsonValue cursor() const override;
  void seek(const JsonValue& cursor) override;
  [[nodiscard]] Metrics derived(double loss, double tokens_per_s) const override;
  void constrain() override { model_->constrain(); }
  Metrics evaluate() override;
  std::vector<std::string> take_warnings() override;

 private:
  LmOptions options_;
  LmData data_;
  torch::Device device_;
  LanguageModel model_;
  TokenLoaderOptions loader_options_;
  std::optional<TokenLoader> loader_;
  TokenBatch batch_;
  Cursor at_;
  double work_ = 0, peak_ = 0;  // operations of a token in training; a second of the device
  std::vector<std::string> warnings_;
};

}  // namespace mhla::train
