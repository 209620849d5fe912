// The denoiser of a run of `mhla train diffusion`, finished or not, opened to be used.
#pragma once

#include <filesystem>

#include "mhla/train/diffusion/diffusion_task.h"
#include "mhla/train/observer.h"
#include "mhla/train/runs/open_options.h"

namespace mhla::train {

// A network to sample from, on its device and in evaluation mode.
struct OpenedDiffusion {
  DitConfig network;
  GenerationConfig generation;
  std::vector<std::string> class_names;  // numbers where the folder has no names
  std::filesystem::path weights;         // the file they came from
  TrainOptions options;                  // device and threads, as resolved
  Dit model{nullptr};
};
// Of a run, or of a folder with config.json and model.safetensors (and maybe ema.safetensors and generation.json).
// Errors open with `command`.
OpenedDiffusion open_diffusion(const std::string& command, const OpenOptions& open, Observer& observer);

// A run with its held-out images: `data`, or where it is empty those of the run.
struct DiffusionRun {
  DiffusionOptions options;  // of train.json, with what OpenOptions change
  DitConfig network;
  std::filesystem::path weights;
  DiffusionProcess process;
  std::unique_ptr<HeldOutSamples> held_out;
  bool held_out_of_training = false;
  Dit model{nullptr};
};
DiffusionRun open_diffusion_run(const std::string& command, const OpenOptions& open, const std::string& data,
                                Observer& observer);

}  // namespace mhla::train
