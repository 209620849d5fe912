// The classifier of a run of `mhla train classify`, finished or not, opened to be used.
#pragma once

#include <filesystem>

#include "mhla/data/preprocess.h"
#include "mhla/train/classify/classification.h"
#include "mhla/train/observer.h"
#include "mhla/train/runs/open_options.h"

namespace mhla::train {

// Options as train.json of a run of `mhla train classify` has them. Runs made before had no test_seed: their seed chose
// the test images.
ClassifyOptions saved_options(const std::filesystem::path& run);

struct ClassifierRun {
  ClassifyOptions options;  // of train.json, with what OpenOptions change
  ClassifierConfig network;
  std::filesystem::path weights;  // the file they came from
  ImageSetPtr images;             // to test on; open_classifier(): none
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
ClassifierRun open_classifier(const std::string& command, const OpenOptions& open, Observer& observer);
// The same with images: `data`, or where it is empty those of the run.
ClassifierRun open_classifier_run(const std::string& command, const OpenOptions& open, const std::string& data,
                                  Observer& observer);

}  // namespace mhla::train
