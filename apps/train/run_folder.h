// A finished (or unfinished) run of `mhla train classify`, opened to be looked at.
#pragma once

#include <filesystem>

#include "mhla/train/classification.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

struct RunFolder {
  train::ClassifyOptions options;  // of train.json, with what the request changes
  ImageConfig network;
  std::filesystem::path weights;  // the file they came from
  ImageSetPtr images;             // to test on
  AnyImageModel model;            // on its device
};

// The final weights, or with a warning those of the newest checkpoint. `request` has "weights" (model or ema), and
// "data", "batch", "threads" and "device", empty or 0 for those of the run. Errors open with `command`.
RunFolder open_run(const std::string& command, const std::filesystem::path& run, const JsonValue& request,
                   train::Observer& observer);

}  // namespace mhla::apps
