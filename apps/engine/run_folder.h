// A finished (or unfinished) run of `mhla train`, opened to be looked at.
#pragma once

#include <filesystem>

#include "mhla/train/classify/classification.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Where the weights of a run are: the final ones, or with a warning those of the newest checkpoint. `which`: model or
// ema. Errors open with `command`.
struct RunWeights {
  std::filesystem::path folder, file;  // folder has the config.json of the file
  std::string prefix;                  // of the tensors in the file
};
RunWeights find_weights(const std::string& command, const std::filesystem::path& run, const std::string& which,
                        train::Observer& observer);
// "batch", "threads" and "device" of a request, where they are not 0 or empty, in the place of the run's.
void change_options(const JsonValue& request, train::TrainOptions& options);

// Options as train.json of a run of `mhla train classify` has them. Runs made before had no test_seed: their seed chose
// the test images.
train::ClassifyOptions saved_options(const std::filesystem::path& run);

// The model of a run that goes on. Runs made before name the file it was described by; where that is gone, the run's
// config.json says the same.
std::string model_of(const std::string& model, const std::filesystem::path& run);

// Names of the classes a run is trained on, beside its model. Data whose classes have other names are refused; classes
// that have numbers alone, and runs made before there were names, are compared with none.
void keep_classes(const std::filesystem::path& run, const ImageSet& set);
void expect_same_classes(const std::string& command, const std::filesystem::path& run, const ImageSet& set);

struct RunFolder {
  train::ClassifyOptions options;  // of train.json, with what the request changes
  ClassifierConfig network;
  std::filesystem::path weights;  // the file they came from
  ImageSetPtr images;             // to test on
  bool held_out = false;          // of the training set of the run
  AnyClassifier model;            // on its device
};

// Of `mhla train classify`. `request` has "weights" (model or ema), "data", empty for that of the run, and what
// change_options() takes.
RunFolder open_run(const std::string& command, const std::filesystem::path& run, const JsonValue& request,
                   train::Observer& observer);

}  // namespace mhla::apps
