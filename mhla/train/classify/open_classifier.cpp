#include "mhla/train/classify/open_classifier.h"

#include "mhla/core/error.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/trainer.h"
#include "mhla/train/weights.h"

namespace mhla::train {

namespace fs = std::filesystem;

ClassifyOptions saved_options(const fs::path& run) {
  ClassifyOptions options;
  options_from_json(options, read_json(run / kOptionsFile), (run / kOptionsFile).string());
  if (!options.test_seed) options.test_seed = options.train.seed;
  return located(options);
}

namespace {

// A model without a run, as `mhla convert` writes it, says nothing of data.
bool is_alone(const fs::path& run) {
  return !fs::exists(run / "train.json") && fs::exists(run / "config.json") && fs::exists(run / "model.safetensors");
}

// All but the images and the weights. `data` replaces that of the run where it is not empty.
ClassifierRun described(const std::string& command, const OpenOptions& open, const std::string& data, RunWeights& found,
                        Observer& observer) {
  const fs::path run = open.run;
  ClassifierRun opened;
  ClassifyOptions& options = opened.options;
  const bool alone = is_alone(run);
  if (alone) {
    if (open.weights != "model")
      fail(command, ": --weights is ", open.weights, ", but ", run.string(), " is a model without a run");
    found = {run, run / "model.safetensors", "", {}};
    options.augment = "none";
  } else {
    found = find_weights(command, run, open.weights, observer);
    if (Run::open(command, run).task() != ClassifyOptions::kTask)
      fail(command, ": ", run.string(), " is no run of `mhla train classify`");
    options = saved_options(run);
  }
  opened.network = read_classifier_config(found.folder / "config.json");
  if (const std::optional<Preprocess> kept = read_preprocess(run)) {
    opened.preprocess = *kept;
  } else {
    opened.preprocess = preprocess_of(options.augment, options.normalize, alone ? "" : image_kind(options.data),
                                      static_cast<int>(opened.network.channels));
  }
  if (!data.empty()) options.data = data, options.test_images = options.train_images = 0;
  change_options(open, options.train);
  prepare(options.train, observer);
  opened.weights = found.file;
  return opened;
}

void load_weights(const std::string& command, const RunWeights& found, std::int64_t batch, ClassifierRun& opened) {
  expect_inference_fits(command, size_of(opened.network), batch, opened.options.train,
                        static_cast<double>(fs::file_size(found.file)));
  opened.model = make_classifier(opened.network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(*opened.model));
  opened.model->to(device_of(opened.options.train.device));
}

}  // namespace

ClassifierRun open_classifier(const std::string& command, const OpenOptions& open, Observer& observer) {
  RunWeights found;
  ClassifierRun opened = described(command, open, "", found, observer);
  load_weights(command, found, opened.options.train.batch, opened);
  return opened;
}

ClassifierRun open_classifier_run(const std::string& command, const OpenOptions& open, const std::string& data,
                                  Observer& observer) {
  const fs::path run = open.run;
  if (is_alone(run) && data.empty()) fail(command, ": ", run.string(), " is a model without a run, expected --data");
  RunWeights found;
  ClassifierRun opened = described(command, open, data, found, observer);
  const ClassifyOptions& options = opened.options;
  const bool other = !data.empty() && (is_alone(run) || folder_of(data) != folder_of(saved_options(run).data));
  if (other && needs_hold_out(data)) {  // all of it: the model has seen none
    opened.images = open_images(data, Split::kTrain);
  } else {
    const ClassifyData own = open_test(options);
    opened.images = own.test, opened.held_out = own.held_out;
  }
  if (opened.images->channels() != opened.network.channels && opened.network.channels != 3)
    fail(command, ": ", opened.images->name(), " has ", opened.images->channels(), " channels, expected the ",
         opened.network.channels, " of the model");
  if (opened.images->classes() != opened.network.classes)
    fail(command, ": ", opened.images->name(), " has ", opened.images->classes(), " classes, expected the ",
         opened.network.classes, " of the model");
  expect_same_classes(command, run, *opened.images);
  // Folders made before there was a preprocess.json: as their training, or by the data.
  if (!fs::exists(run / kPreprocessFile))
    opened.preprocess = preprocess_of(augment_of(options, opened.network, *opened.images));
  load_weights(command, found, std::min(options.train.batch, opened.images->size()), opened);
  return opened;
}

}  // namespace mhla::train
