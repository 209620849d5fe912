#include "apps/engine/classify.h"

#include <cmath>

#include "apps/engine/training.h"
#include "mhla/core/error.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/classify/classify_init.h"
#include "mhla/train/classify/open_classifier.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

void train_here(const TrainRequest<ClassifyOptions>& request, ClassifyOptions options, Observer& observer) {
  const fs::path folder = request.out;
  check(options.train);
  if (options.train.place.context > 1)
    fail("train classify: context_parallel is ", options.train.place.context,
         ", expected 1: processes share batches of images, not images");
  RunStart start{.resume = request.resume, .overwrite = request.overwrite};
  const bool goes_on = start.resume && fs::exists(folder / "train.json");
  if (goes_on) options.test_seed = saved_options(folder).test_seed, options.model = model_of(options.model, folder);
  expect_room(folder, start);  // before anything is written into it
  note_origin(options);
  const ClassifyOptions typed = options;
  options = located(options);
  const std::optional<InitSource> init = init_source("train classify", options.train, folder, start, observer);
  const ClassifyData data = open_data(options);
  if (goes_on) expect_same_classes("train classify", folder, *data.train);
  const ClassifierConfig network = network_of(options, *data.train);
  options = resolved(options, network, *data.train);
  prepare(options.train, observer);
  expect_fits(options, network);
  ClassificationTask task(options, data, network);
  if (init) note_init(*init, start_from(task.classifier(), *init), options.origin, start);
  settle_warmup(task, options.train, start);
  Trainer trainer(task, options.train, folder, options_to_json(as_typed(options, typed)), observer);
  run_to_end(trainer, start, folder);
}

}  // namespace

void train_classify(const TrainRequest<ClassifyOptions>& request, Observer& observer) {
  ClassifyOptions options = request.options;
  in_team(options.train, observer, [&](Observer& heard) { train_here(request, options, heard); });
}

void eval_classify(const EvalClassifyRequest& request, Observer& observer) {
  const ClassifierRun run = open_classifier_run("eval classify", request.open, request.data, observer);
  const auto& [options, network, weights, images, held_out, model, preprocess] = run;
  const Score result =
      score(*model, images, run.augment_for(network), options, [&](std::int64_t done, std::int64_t of) {
        observer.progress(JsonValue().set("kind", "eval").set("step", done).set("of", of).set("samples", "images"));
      });
  if (!std::isfinite(result.loss)) throw not_finite("eval classify", weights);
  if (const std::string text = left_out_warning(*images); !text.empty()) warn(observer, text);
  for (const std::string& text : result.warnings) warn(observer, text);
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
                   .set("weights", weights.string())
                   .set("model", network.model)
                   .set("attention", network.attention)
                   .set("data", images->name())
                   .set("held_out", held_out)
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
