#include "apps/train/classify.h"

#include "mhla/core/error.h"
#include "mhla/train/checkpoints.h"
#include "mhla/train/classification.h"
#include "mhla/train/weights.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

void train_classify(const JsonValue& request, Observer& observer) {
  ClassifyOptions options;
  fields_from_json(options, request.at("options"), "train classify");
  const fs::path folder = request.at("out").as_string();
  check(options.train);
  const ClassifyData data = open_data(options);
  const ImageConfig network = network_of(options, *data.train);
  options = resolved(options, network, *data.train);
  prepare(options.train);
  ClassificationTask task(options, data, network);
  Trainer trainer(task, options.train, folder, fields_to_json(options), observer);
  const TrainResult result = trainer.run(request.at("resume").as_bool());
  if (!result.stopped.empty())
    throw RunFailed(str("train: stopped by ", result.stopped, " at step ", result.step, " of ", trainer.total_steps(),
                        ", which is saved; go on with --resume --out ", folder.string()));
}

namespace {

// The final weights, or those of the newest checkpoint while there are none.
struct Found {
  fs::path folder, file;
  std::string prefix;  // of the tensors in the file
};

Found find_weights(const fs::path& run, const std::string& which, Observer& observer) {
  if (!fs::is_directory(run)) fail("eval classify: ", run.string(), " is no folder of a run");
  if (!fs::exists(run / "train.json")) fail("eval classify: ", run.string(), " has no train.json: is it a run?");
  const fs::path final_file = run / (which + ".safetensors");
  if (fs::exists(final_file)) return {run, final_file, ""};
  std::vector<std::string> complaints;
  const std::optional<Checkpoint> newest = CheckpointFolder(run / "checkpoints", 1).newest(complaints);
  for (const std::string& text : complaints) observer.row(JsonValue().set("kind", "warning").set("text", text));
  if (!newest) fail("eval classify: ", final_file.string(), " is not there, and ", run.string(), " has no checkpoint");
  observer.row(JsonValue()
                   .set("kind", "warning")
                   .set("text", str("the run is not at its end: these are the weights of ", newest->path.string())));
  if (which == "ema") return {newest->path, newest->path / "trainer.safetensors", "ema."};
  return {newest->path, newest->path / "model.safetensors", ""};
}

}  // namespace

void eval_classify(const JsonValue& request, Observer& observer) {
  const fs::path run = request.at("run").as_string();
  const Found found = find_weights(run, request.at("weights").as_string(), observer);
  ClassifyOptions options;
  fields_from_json(options, read_json(run / "train.json"), (run / "train.json").string());
  if (!request.at("data").as_string().empty()) {
    options.data = request.at("data").as_string();
    options.test_images = options.train_images = 0;
  }
  if (request.at("batch").as_int() > 0) options.train.batch = request.at("batch").as_int();
  if (request.at("threads").as_int() > 0) options.train.threads = request.at("threads").as_int();
  if (!request.at("device").as_string().empty()) options.train.device = request.at("device").as_string();
  if (options.train.device == "cpu") options.train.precision = "f32";
  prepare(options.train);

  const ImageConfig network = read_image_config(found.folder / "config.json");
  const ImageSetPtr images = open_data(options).test;
  if (images->classes() != network.classes)
    fail("eval classify: ", images->name(), " has ", images->classes(), " classes, expected the ", network.classes,
         " of the model");
  const AnyImageModel model = make_image_model(network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(*model));
  model->to(device_of(options.train.device));
  const Score result = score(*model, images, augment_of(options, network, *images), options.train);
  JsonValue names = JsonValue::array(), confusion = JsonValue::array();
  const auto classes = static_cast<std::size_t>(network.classes);
  for (std::size_t i = 0; i < classes; ++i) {
    names.push(images->class_names()[i]);
    JsonValue row = JsonValue::array();
    for (std::size_t j = 0; j < classes; ++j) row.push(result.confusion[i * classes + j]);
    confusion.push(row);
  }
  observer.row(JsonValue()
                   .set("kind", "eval")
                   .set("weights", found.file.string())
                   .set("model", network.model)
                   .set("attention", network.attention)
                   .set("data", images->name())
                   .set("images", result.images)
                   .set("damaged", result.damaged)
                   .set("loss", result.loss)
                   .set("top1", result.top1)
                   .set("top5", result.top5)
                   .set("images_per_s", static_cast<double>(result.images) / result.seconds)
                   .set("classes", names)
                   .set("confusion", confusion));
}

}  // namespace mhla::apps
