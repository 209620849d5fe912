// What opening a run has in common for every task: open_classifier.h, open_lm.h.
#pragma once

#include <filesystem>
#include <string>

#include "mhla/train/observer.h"
#include "mhla/train/options.h"
#include "mhla/train/runs/open_options.h"
#include "mhla/train/runs/run.h"

namespace mhla::train {

// Batch and device, where they are not 0 or empty, instead of the run's; threads always, 0: all.
void change_options(const OpenOptions& open, TrainOptions& options);

// prepare() of trainer.h; says so where there are fewer threads than asked for, once.
void prepare(const TrainOptions& options, Observer& observer);

// Run::weights() with its warnings told. Errors open with `command`.
RunWeights find_weights(const std::string& command, const std::filesystem::path& run, const std::string& which,
                        Observer& observer);

}  // namespace mhla::train
