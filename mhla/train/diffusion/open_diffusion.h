// The denoiser of a run of `mhla train diffusion`, finished or not, opened to be evaluated. To sample from one,
// diffusion/open_generator.h opens it without any data.
#pragma once

#include <filesystem>

#include "mhla/train/diffusion/diffusion_task.h"
#include "mhla/train/observer.h"
#include "mhla/train/runs/open_options.h"

namespace mhla::train {

// A run with its held-out images: `data`, or where it is empty those of the run.
struct DiffusionRun {
  DiffusionOptions options;  // of train.json, with what OpenOptions change
  std::filesystem::path weights;
  DiffusionProcess process;
  std::unique_ptr<HeldOutSamples> held_out;
  bool held_out_of_training = false;
  DiffusionModel model;
};
DiffusionRun open_diffusion_run(const std::string& command, const OpenOptions& open, const std::string& data,
                                Observer& observer);

}  // namespace mhla::train
