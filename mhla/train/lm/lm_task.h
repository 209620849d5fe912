// Language modelling as a Task: a LanguageModel, batches of what it learns from, the chunked cross entropy. A sample is
// a token that has a target.
#pragma once

#include "mhla/models/lm/lm.h"
#include "mhla/train/lm/lm_data.h"
#include "mhla/train/lm/lm_options.h"
#include "mhla/train/sharing.h"
#include "mhla/train/task.h"

namespace mhla::train {

// Throws mhla::Error naming the option, its value and what is expected.
void check(const LmOptions& options);

// The network of the options, with the vocabulary of the data where it does not say otherwise.
LmConfig network_of(const LmOptions& options, const LmData& data);
// The smallest that it can be, before the data is opened: its vocabulary comes with that.
LmConfig least_network(const LmOptions& options);
// Throws with an estimate where the memory at hand cannot hold a training of it.
void expect_fits(const LmOptions& options, const LmConfig& network);
// Every choice that was left open (context) filled in.
LmOptions resolved(const LmOptions& options, const LmConfig& network);
// "train:SIZE" of the model's vocabulary where the options name none.
std::string tokenizer_of(const LmOptions& options);

class LmTask : public Task {
 public:
  // Seeded by prepare() before: the model's weights are drawn here.
  LmTask(const LmOptions& options, LmDataPtr data, const LmConfig& network);

  torch::nn::Module& model() override { return *model_; }
  LanguageModelImpl& language_model() { return *model_; }
  [[nodiscard]] JsonValue model_config() const override { return fields_to_json(model_->config()); }
  [[nodiscard]] const char* samples() const override { return data_->samples(); }
  void write_companions(const std::filesystem::path& folder) const override;
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return batches_->batches_per_epoch(); }
  TrainBatch next_batch() override;  // the tensors of an LmBatch
  BatchResult forward(const TrainBatch& batch) override;
  [[nodiscard]] std::string why_not_recorded() const override;
  [[nodiscard]] JsonValue cursor() const override;
  void seek(const JsonValue& cursor) override;
  [[nodiscard]] Metrics derived(double loss, double samples_per_s) const override;
  void constrain() override { model_->constrain(); }
  Metrics evaluate(const EvalProgress& progress) override;
  [[nodiscard]] MainMetric main_metric() const override { return {"loss", /*larger_is_better=*/false}; }
  std::vector<std::string> take_warnings() override;

 private:
  LmOptions options_;
  LmDataPtr data_;
  torch::Device device_;
  LanguageModel model_;
  std::unique_ptr<TokenBatches> batches_;
  TokenBatch batch_;
  Cursor at_;
  double work_ = 0, peak_ = 0;  // operations of a sample in training; a second of the device
  std::vector<std::string> warnings_;
  std::optional<SharedSequences> sharing_;
};

}  // namespace mhla::train
