// A finished (or unfinished) run of `mhla train`, opened to be looked at.
#pragma once

#include <filesystem>

#include "mhla/data/preprocess.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/classify/classification.h"
#include "mhla/train/init_source.h"
#include "mhla/train/runs/open_options.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Threads, seed and the rest of train::prepare(); says so where there are fewer threads than asked for.
void prepare(const train::TrainOptions& options, train::Observer& observer);

// For throwing: "eval lm: the weights in FILE give NaN or infinite values".
Error not_finite(const std::string& command, const std::filesystem::path& weights);

// Where the weights of a run are: the final ones, or with a warning those of the newest checkpoint. `which`: model,
// ema or best. Errors open with `command`.
struct RunWeights {
  std::filesystem::path folder, file;  // folder has the config.json of the file
  std::string prefix;                  // of the tensors in the file
};
RunWeights find_weights(const std::string& command, const std::filesystem::path& run, const std::string& which,
                        train::Observer& observer);
// Batch and device, where they are not 0 or empty, instead of the run's; threads always, 0: all.
void change_options(const train::OpenOptions& open, train::TrainOptions& options);

// Where the weights of `init` are, or none: there is no init, or the run goes on from a checkpoint in `folder`.
std::optional<train::InitSource> init_source(const std::string& command, const train::TrainOptions& options,
                                             const std::filesystem::path& folder, const train::RunStart& start,
                                             train::Observer& observer);
// What train.json and the first row of the log say of it.
void note_init(const train::InitSource& source, const std::vector<std::string>& changes, JsonValue& origin,
               train::RunStart& start);
// The warm-up that the options leave open, for the steps of the task. One that is shorter than usual is said when the
// run begins.
void settle_warmup(const train::Task& task, train::TrainOptions& options, train::RunStart& start);
// Runs to the end; a signal that ended it early is RunFailed.
void run_to_end(train::Trainer& trainer, const train::RunStart& start, const std::filesystem::path& folder);

// Options as train.json of a run of `mhla train classify` has them. Runs made before had no test_seed: their seed chose
// the test images.
train::ClassifyOptions saved_options(const std::filesystem::path& run);

// The model of a run that goes on. Runs made before name the file it was described by; where that is gone, the run's
// config.json says the same.
std::string model_of(const std::string& model, const std::filesystem::path& run);

struct RunFolder {
  train::ClassifyOptions options;  // of train.json, with what OpenOptions change
  ClassifierConfig network;
  std::filesystem::path weights;  // the file they came from
  ImageSetPtr images;             // to test on; open_model: none
  bool held_out = false;          // of the training set of the run
  AnyClassifier model;            // on its device
  Preprocess preprocess;          // from an image to its input

  [[nodiscard]] Augment augment_for(const ClassifierConfig& c) const {
    return augment_of(preprocess, static_cast<int>(c.image[0]), static_cast<int>(c.image[1]),
                      static_cast<int>(c.channels));
  }
};

// The classifier of a run of `mhla train classify`, or of a folder with config.json and model.safetensors, without any
// data.
RunFolder open_model(const std::string& command, const train::OpenOptions& open, train::Observer& observer);
// The same with images: `data`, or where it is empty those of the run.
RunFolder open_run(const std::string& command, const train::OpenOptions& open, const std::string& data,
                   train::Observer& observer);

}  // namespace mhla::apps
