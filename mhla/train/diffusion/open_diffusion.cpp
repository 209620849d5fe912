#include "mhla/train/diffusion/open_diffusion.h"

#include "mhla/core/error.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/trainer.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

DiffusionOptions saved_diffusion(const std::string& command, const fs::path& run) {
  const Run opened = Run::open(command, run);
  if (opened.task() != DiffusionOptions::kTask)
    fail(command, ": ", run.string(), " is a run of `mhla train ", opened.task(), "`, expected one of `mhla train ",
         DiffusionOptions::kTask, "`");
  DiffusionOptions options;
  options_from_json(options, opened.options(), (run / kOptionsFile).string());
  return located(options);
}

// The weights of a folder that is no run.
RunWeights weights_in(const std::string& command, const fs::path& folder, const std::string& which) {
  const fs::path file = folder / (which + ".safetensors");
  if (!fs::exists(folder / "config.json") || !fs::exists(file))
    fail(command, ": ", folder.string(), " has not both config.json and ", file.filename().string(),
         ", expected a run of `mhla train diffusion` or a folder of `mhla convert`");
  return {folder, file, "", {}};
}

Dit loaded(const std::string& command, const DitConfig& network, const RunWeights& found, std::int64_t batch,
           const TrainOptions& options) {
  expect_inference_fits(command, size_of(network), batch, options, static_cast<double>(fs::file_size(found.file)));
  Dit model(network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(*model));
  model->to(device_of(options.device));
  model->eval();
  return model;
}

}  // namespace

OpenedDiffusion open_diffusion(const std::string& command, const OpenOptions& open, Observer& observer) {
  const fs::path folder = open.run;
  OpenedDiffusion opened;
  RunWeights found;
  if (fs::exists(folder / kOptionsFile)) {
    opened.options = saved_diffusion(command, folder).train;
    found = find_weights(command, folder, open.weights, observer);
  } else {
    found = weights_in(command, folder, open.weights);
  }
  change_options(open, opened.options);
  prepare(opened.options, observer);
  opened.weights = found.file;
  opened.network = read_dit_config(found.folder / "config.json");
  opened.generation =
      read_generation_config(folder, dit_generation(opened.network.channels, opened.network.learn_sigma));
  labelled(folder.string(), [&] { check(opened.generation, opened.network.channels, opened.network.learn_sigma); });
  opened.class_names = read_class_names(folder, opened.network.classes);
  opened.model = loaded(command, opened.network, found, 1, opened.options);
  return opened;
}

DiffusionRun open_diffusion_run(const std::string& command, const OpenOptions& open, const std::string& data,
                                Observer& observer) {
  const fs::path folder = open.run;
  const RunWeights found = find_weights(command, folder, open.weights, observer);
  DiffusionOptions options = saved_diffusion(command, folder);
  change_options(open, options.train);
  const bool other = !data.empty() && folder_of(data) != folder_of(options.data);
  if (!data.empty()) options.data = data, options.train_images = 0;
  if (other) options.test_images.reset();
  prepare(options.train, observer);
  const DitConfig network = read_dit_config(found.folder / "config.json");
  DiffusionSource source;
  if (other && needs_hold_out(data)) {  // all of it: the model has seen none
    source.images.test = open_images(data, Split::kTrain);
  } else {
    source = open_held_out(options);
  }
  if (source.classes() != network.classes)
    fail(command, ": ", source.name(), " has ", source.classes(), " classes, expected the ", network.classes,
         " of the model");
  expect_same_classes(command, folder, source.set());
  Dit model = loaded(command, network, found, options.train.batch, options.train);
  return {.options = options,
          .network = network,
          .weights = found.file,
          .process = DiffusionProcess(options, network.learn_sigma),
          .held_out = held_out_samples(source, options, network),
          .held_out_of_training = source.images.held_out,
          .model = model};
}

}  // namespace mhla::train
