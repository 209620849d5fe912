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

DiffusionModel loaded(const std::string& command, const NetworkConfig& network, const RunWeights& found,
                      std::int64_t batch, const TrainOptions& options) {
  expect_inference_fits(command, network.size(), batch, options, static_cast<double>(fs::file_size(found.file)));
  DiffusionModel model(network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(model.module()));
  model.module().to(device_of(options.device));
  model.module().eval();
  return model;
}

// An Error that names what the model cannot be judged on.
void expect_data_of(const std::string& command, const NetworkConfig& network, const DiffusionSource& source) {
  const std::vector<std::int64_t> shape{network.channels(), network.image[0], network.image[1]};
  if (source.latents && source.latents->test_set->config().shape != shape)
    fail(command, ": ", source.name(), " has latents of another shape than the model");
  if (!network.takes_captions()) {
    if (source.classes() != network.dit().classes)
      fail(command, ": ", source.name(), " has ", source.classes(), " classes, expected the ", network.dit().classes,
           " of the model");
    return;
  }
  const std::vector<std::int64_t> captions =
      source.has_captions() ? source.latents->test_set->config().captions : std::vector<std::int64_t>{};
  if (captions != std::vector<std::int64_t>{network.sana().caption_tokens, network.sana().caption_dim})
    fail(command, ": ", source.name(), " has ", captions.empty() ? "no captions" : "captions of another size",
         ", expected latents with captions of ", network.sana().caption_tokens, " tokens and ",
         network.sana().caption_dim, " channels");
}

}  // namespace

DiffusionRun open_diffusion_run(const std::string& command, const OpenOptions& open, const std::string& data,
                                Observer& observer) {
  const fs::path folder = open.run;
  const RunWeights found = find_weights(command, folder, open.weights, observer);
  DiffusionOptions options = saved_diffusion(command, folder);
  change_options(open, options.train);
  const bool other = !data.empty() && folder_of(data) != folder_of(options.data);
  if (!data.empty()) options.data = data, options.train_images = 0, options.flip.reset();
  if (other) options.test_images.reset(), options.fit = is_latent_data(data) ? "" : options.fit;
  prepare(options.train, observer);
  const DiffusionSource source = other ? open_unseen(options) : open_held_out(options);
  const GenerationConfig generation = read_generation_config(folder, {});
  std::array<std::int64_t, 2> image{};
  if (generation.sample.size() == 2) image = {generation.sample[0], generation.sample[1]};
  const NetworkConfig network = read_network_config(found.folder / "config.json", image);
  expect_data_of(command, network, source);
  if (!network.takes_captions()) expect_same_classes(command, folder, source.class_names(), source.name());
  DiffusionModel model = loaded(command, network, found, options.train.batch, options.train);
  return {.options = options,
          .weights = found.file,
          .process = DiffusionProcess(generation_of(options, network.learn_sigma(), source)),
          .held_out = held_out_samples(source, options, network),
          .held_out_of_training = source.held_out(),
          .model = model};
}

}  // namespace mhla::train
