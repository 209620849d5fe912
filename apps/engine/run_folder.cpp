#include "apps/engine/run_folder.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/train/checkpoints.h"
#include "mhla/train/model_file.h"
#include "mhla/train/weights.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

constexpr const char* kClasses = "classes.json";  // names, in the order of the model's outputs

// What a set calls its classes where it knows no better.
bool is_number(const std::string& name, std::size_t number) {
  return name == std::to_string(number) || name == str("class ", number);
}

}  // namespace

void keep_classes(const fs::path& run, const ImageSet& set) {
  std::error_code error;  // which the trainer will tell
  fs::create_directories(run, error);
  if (error) return;
  JsonValue names = JsonValue::array();
  for (const std::string& name : set.class_names()) names.push(name);
  write_file(run / kClasses, write_json(names, 2) + "\n");
}

void expect_same_classes(const std::string& command, const fs::path& run, const ImageSet& set) {
  if (!fs::exists(run / kClasses)) return;
  const JsonValue names = read_json(run / kClasses);
  for (std::size_t i = 0; i < std::min(names.size(), set.class_names().size()); ++i) {
    const std::string &name = set.class_names()[i], &expected = names.at(i).as_string();
    if (name != expected && !is_number(name, i) && !is_number(expected, i))
      fail(command, ": ", set.name(), ": class ", i, " is '", name, "', expected '", expected, "' as in ",
           (run / kClasses).string());
  }
}

RunWeights find_weights(const std::string& command, const fs::path& run, const std::string& which, Observer& observer) {
  if (!fs::is_directory(run)) fail(command, ": ", run.string(), " is no folder of a run");
  if (!fs::exists(run / "train.json")) fail(command, ": ", run.string(), " has no train.json: is it a run?");
  if (which == "ema") {
    const JsonValue options = read_json(run / "train.json");
    if (const JsonValue* ema = options.find("ema"); ema == nullptr || ema->as_double() == 0.0)
      fail(command, ": --weights is ema, but ", run.string(), " has no average of its weights (ema 0)");
  }
  const fs::path final_file = run / (which + ".safetensors");
  if (fs::exists(final_file)) return {run, final_file, ""};
  std::vector<std::string> complaints;
  const std::optional<Checkpoint> newest = CheckpointFolder(run / "checkpoints", 1).newest(complaints);
  for (const std::string& text : complaints) observer.row(JsonValue().set("kind", "warning").set("text", text));
  if (!newest) fail(command, ": ", final_file.string(), " is not there, and ", run.string(), " has no checkpoint");
  observer.row(JsonValue()
                   .set("kind", "warning")
                   .set("text", str("the run is not at its end: these are the weights of ", newest->path.string())));
  if (which == "ema") return {newest->path, newest->path / "trainer.safetensors", "ema."};
  return {newest->path, newest->path / "model.safetensors", ""};
}

void change_options(const JsonValue& request, TrainOptions& options) {
  if (request.at("batch").as_int() > 0) options.batch = request.at("batch").as_int();
  if (request.at("threads").as_int() > 0) options.threads = request.at("threads").as_int();
  if (!request.at("device").as_string().empty()) options.device = request.at("device").as_string();
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
  return options;
}

RunFolder open_run(const std::string& command, const fs::path& run, const JsonValue& request, Observer& observer) {
  const std::string& data = request.at("data").as_string();
  RunFolder opened;
  ClassifyOptions& options = opened.options;
  RunWeights found;
  // A model alone, as `mhla convert` writes it, says nothing of data.
  const bool alone =
      !fs::exists(run / "train.json") && fs::exists(run / "config.json") && fs::exists(run / "model.safetensors");
  if (alone) {
    if (data.empty()) fail(command, ": ", run.string(), " is a model without a run, expected --data");
    if (request.at("weights").as_string() != "model")
      fail(command, ": --weights is ", request.at("weights").as_string(), ", but ", run.string(),
           " is a model without a run");
    found = {run, run / "model.safetensors", ""};
    options.augment = "none";
  } else {
    found = find_weights(command, run, request.at("weights").as_string(), observer);
    options = saved_options(run);
  }
  const bool other = !data.empty() && folder_of(data) != folder_of(options.data);
  if (!data.empty()) options.data = data, options.test_images = options.train_images = 0;
  change_options(request, options.train);
  prepare(options.train);

  opened.weights = found.file;
  opened.network = read_classifier_config(found.folder / "config.json");
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
  opened.model = make_classifier(opened.network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(*opened.model));
  opened.model->to(device_of(options.train.device));
  return opened;
}

}  // namespace mhla::apps
