// Image classification as a Task: an Classifier, images with their augmentation, cross entropy with smoothed or soft
// targets; and the score of a classifier on held-out images.
#pragma once

#include <memory>
#include <optional>

#include "mhla/models/classify/classifier.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/classify/classify_options.h"
#include "mhla/train/image_data.h"
#include "mhla/train/task.h"

namespace mhla::train {

using ClassifyData = ImageData;
// The test images are the same for every seed of the training: test_seed chooses them.
ClassifyData open_data(const ClassifyOptions& options);
// The same test images without a look at the training files; `train` is null unless they are held out of it.
ClassifyData open_test(const ClassifyOptions& options);

// The network of the options, of as many channels and classes as the data has; then every choice that was left open
// (recipe, decay of mix) filled in.
ClassifierConfig network_of(const ClassifyOptions& options, const ImageSet& set);
ClassifyOptions resolved(const ClassifyOptions& options, const ClassifierConfig& network, const ImageSet& set);
// Throws with an estimate where the memory at hand cannot hold a training of it.
void expect_fits(const ClassifyOptions& options, const ClassifierConfig& network);
// From an image of the set to the network's input, in training; without_chance() of it in evaluation.
Augment augment_of(const ClassifyOptions& options, const ClassifierConfig& network, const ImageSet& set);

// Mean over the batch of -sum_k target_k log softmax(logits)_k. Targets [B] of classes, smoothed, or [B, K] of
// weights that sum to 1, smoothed alike: (1 - s) target + s / K.
torch::Tensor soft_cross_entropy(const torch::Tensor& logits, const torch::Tensor& targets, double smoothing);
// [B, K]: weights[i] at labels[i], the rest at other_labels[i].
torch::Tensor soft_targets(const Batch& batch, std::int64_t classes);

// [B, K] f32 where the model is, in the precision of the options.
torch::Tensor logits_of(Classifier& model, const Batch& batch, const TrainOptions& options);

struct Score {
  std::int64_t images = 0, damaged = 0;
  std::vector<std::string> warnings;    // names of the damaged ones
  double loss = 0, top1 = 0, top5 = 0;  // top5 of at most as many as there are classes
  std::vector<std::int64_t> confusion;  // [K, K]: row the true class, column the predicted one
  double seconds = 0;
};
// In evaluation mode without gradients. `batch` images at a time, every image once.
Score score(Classifier& model, const ImageSetPtr& images, const Augment& augment, const ClassifyOptions& options,
            const EvalProgress& progress = {});

class ClassificationTask : public Task {
 public:
  // Seeded by prepare() before: the model's weights are drawn here.
  ClassificationTask(const ClassifyOptions& options, const ClassifyData& data, const ClassifierConfig& network);

  torch::nn::Module& model() override { return *model_; }
  Classifier& classifier() { return *model_; }
  [[nodiscard]] JsonValue model_config() const override;
  [[nodiscard]] const char* samples() const override { return "images"; }
  void write_companions(const std::filesystem::path& folder) const override;
  [[nodiscard]] std::int64_t batches_per_epoch() const override { return batches_.per_epoch(); }
  TrainBatch next_batch() override;  // images, labels, and the classes' shares where they are mixed
  BatchResult forward(const TrainBatch& batch) override;
  [[nodiscard]] JsonValue cursor() const override { return batches_.cursor(); }
  void seek(const JsonValue& cursor) override { batches_.seek(cursor); }
  void constrain() override { model_->constrain(); }
  [[nodiscard]] std::string tested_on() const override;
  Metrics evaluate(const EvalProgress& progress) override;
  [[nodiscard]] MainMetric main_metric() const override { return {"top1"}; }
  std::vector<std::string> take_warnings() override;

 private:
  ClassifyOptions options_;
  ClassifyData data_;
  Augment augment_;
  torch::Device device_;
  ImageBatches batches_;
  AnyClassifier model_;
  std::vector<std::string> warnings_;
};

}  // namespace mhla::train
