#include "apps/engine/diffusion.h"

#include <cmath>

#include "apps/engine/training.h"
#include "mhla/core/error.h"
#include "mhla/train/classify/class_names.h"
#include "mhla/train/diffusion/diffusion_init.h"
#include "mhla/train/diffusion/open_diffusion.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

void train_diffusion(const TrainRequest<DiffusionOptions>& request, Observer& observer) {
  DiffusionOptions options = request.options;
  const fs::path folder = request.out;
  check(options);
  RunStart start{.resume = request.resume, .overwrite = request.overwrite};
  const bool goes_on = start.resume && fs::exists(folder / "train.json");
  if (goes_on) options.model = model_of(options.model, folder);
  expect_room(folder, start);  // before anything is written into it
  note_origin(options);
  const DiffusionOptions typed = options;
  options = located(options);
  const std::optional<InitSource> init = init_source("train diffusion", options.train, folder, start, observer);
  const DiffusionSource source = open_source(options);
  if (goes_on) expect_same_classes("train diffusion", folder, source.class_names(), source.name());
  const DitConfig network = network_of(options, source);
  options = resolved(options, network, source);
  prepare(options.train, observer);
  expect_fits(options, network);
  DiffusionTask task(options, source, network);
  if (init) note_init(*init, start_from(task.dit(), *init, task.generation()), options.origin, start);
  settle_warmup(task, options.train, start);
  Trainer trainer(task, options.train, folder, options_to_json(as_typed(options, typed)), observer);
  run_to_end(trainer, start, folder);
}

void eval_diffusion(const EvalDiffusionRequest& request, Observer& observer) {
  DiffusionRun run = open_diffusion_run("eval diffusion", request.open, request.data, observer);
  const DenoisingScore score =
      denoising_score(*run.model, *run.held_out, run.process, run.options, [&](std::int64_t done, std::int64_t of) {
        observer.progress(JsonValue().set("kind", "eval").set("step", done).set("of", of).set("samples", "images"));
      });
  if (!std::isfinite(score.mse)) throw not_finite("eval diffusion", run.weights);
  for (const std::string& text : score.warnings) warn(observer, text);
  JsonValue row = JsonValue()
                      .set("kind", "eval")
                      .set("weights", run.weights.string())
                      .set("model", run.network.model)
                      .set("attention", run.network.attention)
                      .set("process", run.process.generation().process)
                      .set("data", run.held_out->name())
                      .set("held_out", run.held_out_of_training)
                      .set("images", score.images)
                      .set("damaged", score.damaged)
                      .set("times", score.times)
                      .set("mse", score.mse)
                      .set("mse_se", score.mse_se);
  if (run.network.learn_sigma) row.set("vb", score.vb).set("loss", score.loss);
  observer.row(row.set("images_per_s", static_cast<double>(score.images * score.times) / score.seconds));
}

}  // namespace mhla::apps
