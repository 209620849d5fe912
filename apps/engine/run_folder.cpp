#include "apps/engine/run_folder.h"

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/json_object.h"
#include "mhla/train/best.h"
#include "mhla/train/runs/checkpoints.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/memory.h"
#include "mhla/train/model_file.h"
#include "mhla/train/origin.h"
#include "mhla/train/weights.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

// The cause where train.json is missing.
void expect_options(const std::string& command, const fs::path& run) {
  if (fs::exists(run / "train.json")) return;
  const std::vector<Checkpoint> all = CheckpointFolder(run / "checkpoints", 1).list();
  if (!all.empty())
    fail(command, ": ", (run / "train.json").string(), " is missing; ", (all.back().path / "train.json").string(),
         " is a copy of it");
  if (fs::exists(run / "model.safetensors"))
    fail(command, ": ", run.string(),
         " has weights but neither train.json nor config.json, which say what they are of");
  fail(command, ": ", run.string(), " has no train.json, expected the folder of a training");
}

}  // namespace

void prepare(const TrainOptions& options, Observer& observer) {
  static std::string said;  // once, however many runs a command opens
  const std::string fewer = train::prepare(options);
  if (!fewer.empty() && fewer != said) warn(observer, fewer);
  said = fewer;
}

Error not_finite(const std::string& command, const fs::path& weights) {
  return Error(str(command, ": the weights in ", weights.string(), " give NaN or infinite values"));
}

RunWeights find_weights(const std::string& command, const fs::path& run, const std::string& which, Observer& observer) {
  if (!fs::is_directory(run)) fail(command, ": ", run.string(), " is no folder of a run");
  expect_options(command, run);
  if (which == "ema") {
    const JsonValue options = read_json_object(run / "train.json");
    if (const JsonValue* ema = options.find("ema"); ema == nullptr || ema->as_double() == 0.0)
      fail(command, ": --weights is ema, but ", run.string(), " has no average of its weights (ema 0)");
  }
  const fs::path final_file = run / (which + ".safetensors");
  if (which == "best" && !fs::exists(final_file))
    fail(command, ": --weights is best, but ", run.string(), " has no ", kBestFile,
         ": nothing was evaluated yet, or it was trained with --no-keep-best");
  if (fs::exists(final_file)) return {run, final_file, ""};
  std::vector<std::string> complaints;
  const std::optional<Checkpoint> newest = CheckpointFolder(run / "checkpoints", 1).newest(complaints);
  for (const std::string& text : complaints) warn(observer, text);
  if (!newest) fail(command, ": ", final_file.string(), " is not there, and ", run.string(), " has no checkpoint");
  warn(observer, str("the run is not at its end: these are the weights of ", newest->path.string()));
  if (which == "ema") return {newest->path, newest->path / "trainer.safetensors", "ema."};
  return {newest->path, newest->path / "model.safetensors", ""};
}

std::optional<InitSource> init_source(const std::string& command, const TrainOptions& options, const fs::path& folder,
                                      const RunStart& start, Observer& observer) {
  const fs::path init = options.init;
  const bool goes_on = start.resume && !CheckpointFolder(folder / "checkpoints", 1).list().empty();
  if (init.empty() || goes_on) return {};
  if (!fs::exists(init)) fail(command, ": --init is ", options.init, ", which is not there");
  if (!fs::is_directory(init)) {
    if (options.init_weights != "model")
      fail(command, ": --init-weights is ", options.init_weights, ", but --init is a file, expected a folder");
    return InitSource{options.init, init, "", {}, {}};
  }
  std::error_code none;
  if (fs::equivalent(init, folder, none))
    fail(command, ": --init is ", options.init, ", expected another folder than --out");
  RunWeights found{init, init / (options.init_weights + ".safetensors"), ""};
  if (fs::exists(init / "train.json")) {
    found = find_weights(command, init, options.init_weights, observer);
  } else if (!fs::exists(init / "config.json") || !fs::exists(found.file)) {
    fail(command, ": --init is ", options.init, ", which has not both config.json and ", found.file.filename().string(),
         ", expected a run, a folder of mhla convert or a .safetensors file");
  }
  return InitSource{options.init, found.file, found.prefix, found.folder / "config.json", init};
}

void note_init(const InitSource& source, const std::vector<std::string>& changes, JsonValue& origin, RunStart& start) {
  origin.set("init_crc32c", static_cast<std::int64_t>(file_crc32c(source.file)));
  JsonValue lines = JsonValue::array();
  for (const std::string& change : changes) lines.push(change);
  start.said.set("init", source.file.string()).set("changed", lines);
}

void settle_warmup(const Task& task, TrainOptions& options, RunStart& start) {
  if (options.warmup_steps) return;
  options.warmup_steps = warmup_of(options, total_steps(task, options));
  if (*options.warmup_steps < options.usual_warmup) start.said.set("warmup_steps", *options.warmup_steps);
}

void run_to_end(Trainer& trainer, const RunStart& start, const fs::path& folder) {
  const TrainResult result = trainer.run(start);
  if (!result.stopped.empty())
    throw RunFailed(str("train: stopped by ", result.stopped, " at step ", result.step, " of ", trainer.total_steps(),
                        ", which is saved; go on with --resume --out ", folder.string()));
}

void change_options(const OpenOptions& open, TrainOptions& options) {
  if (open.batch > 0) options.batch = open.batch;
  options.threads = open.threads;
  if (!open.device.empty()) options.device = open.device;
  if (options.device == "cpu") options.precision = "f32";
}

std::string model_of(const std::string& model, const fs::path& run) {
  const fs::path own = run / "config.json";
  return is_model_file(model) && !fs::exists(model) && fs::exists(own) ? own.string() : model;
}

ClassifyOptions saved_options(const fs::path& run) {
  ClassifyOptions options;
  fields_from_json(options, read_json(run / "train.json"), (run / "train.json").string());
  if (!options.test_seed) options.test_seed = options.train.seed;
  return located(options);
}

namespace {

// A model without a run, as `mhla convert` writes it, says nothing of data.
bool is_alone(const fs::path& run) {
  return !fs::exists(run / "train.json") && fs::exists(run / "config.json") && fs::exists(run / "model.safetensors");
}

// All but the images and the weights. `data` replaces that of the run where it is not empty.
RunFolder described(const std::string& command, const OpenOptions& open, const std::string& data, RunWeights& found,
                    Observer& observer) {
  const fs::path run = open.run;
  RunFolder opened;
  ClassifyOptions& options = opened.options;
  const bool alone = is_alone(run);
  if (alone) {
    if (open.weights != "model")
      fail(command, ": --weights is ", open.weights, ", but ", run.string(), " is a model without a run");
    found = {run, run / "model.safetensors", ""};
    options.augment = "none";
  } else {
    found = find_weights(command, run, open.weights, observer);
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

void load_weights(const std::string& command, const RunWeights& found, std::int64_t batch, RunFolder& opened) {
  expect_inference_fits(command, size_of(opened.network), batch, opened.options.train,
                        static_cast<double>(fs::file_size(found.file)));
  opened.model = make_classifier(opened.network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(*opened.model));
  opened.model->to(device_of(opened.options.train.device));
}

}  // namespace

RunFolder open_model(const std::string& command, const OpenOptions& open, Observer& observer) {
  RunWeights found;
  RunFolder opened = described(command, open, "", found, observer);
  load_weights(command, found, opened.options.train.batch, opened);
  return opened;
}

RunFolder open_run(const std::string& command, const OpenOptions& open, const std::string& data, Observer& observer) {
  const fs::path run = open.run;
  if (is_alone(run) && data.empty()) fail(command, ": ", run.string(), " is a model without a run, expected --data");
  RunWeights found;
  RunFolder opened = described(command, open, data, found, observer);
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
    opened.preprocess = preprocess_of(train::augment_of(options, opened.network, *opened.images));
  load_weights(command, found, std::min(options.train.batch, opened.images->size()), opened);
  return opened;
}

}  // namespace mhla::apps
