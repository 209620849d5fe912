#include "apps/engine/diffusion.h"

#include <algorithm>
#include <cmath>

#include "apps/engine/paired.h"
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

namespace {

void train_here(const TrainRequest<DiffusionOptions>& request, DiffusionOptions options, Observer& observer) {
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

}  // namespace

void train_diffusion(const TrainRequest<DiffusionOptions>& request, Observer& observer) {
  DiffusionOptions options = request.options;
  in_team(options.train, observer, [&](Observer& heard) { train_here(request, options, heard); });
}

namespace {

DenoisingScore score_of(DiffusionRun& run, Observer& observer) {
  DenoisingScore score =
      denoising_score(*run.model, *run.held_out, run.process, run.options, [&](std::int64_t done, std::int64_t of) {
        observer.progress(JsonValue().set("kind", "eval").set("step", done).set("of", of).set("samples", "images"));
      });
  if (!std::isfinite(score.mse)) throw not_finite("eval diffusion", run.weights);
  for (const std::string& text : score.warnings) warn(observer, text);
  return score;
}

// An Error that names what two runs differ in, where it is more than their networks.
void expect_comparable(const DiffusionRun& run, const DiffusionRun& other, const std::string& against) {
  const auto expect = [&](bool same, const char* what) {
    if (!same) fail("eval diffusion: --against is ", against, ", which has ", what, " than --run, expected the same");
  };
  expect(run.process.generation().process == other.process.generation().process, "another process");
  expect(run.process.times_to_judge(run.options.eval_times) == other.process.times_to_judge(other.options.eval_times),
         "other times of evaluation (eval_times, noise_steps)");
  expect(run.network.image == other.network.image && run.network.channels == other.network.channels,
         "samples of another size");
  expect(run.held_out->name() == other.held_out->name() && run.held_out->size() == other.held_out->size() &&
             run.options.test_seed == other.options.test_seed && run.options.hold_out == other.options.hold_out,
         "other held-out images (data, test_images, test_seed, hold_out)");
}

}  // namespace

void eval_diffusion(const EvalDiffusionRequest& request, Observer& observer) {
  DiffusionRun run = open_diffusion_run("eval diffusion", request.open, request.data, observer);
  std::optional<DiffusionRun> other;
  if (!request.against.empty()) {
    OpenOptions open = request.open;
    open.run = request.against;
    other.emplace(open_diffusion_run("eval diffusion", open, request.data, observer));
    expect_comparable(run, *other, request.against);
  }
  const DenoisingScore score = score_of(run, observer);
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
  row.set("images_per_s", static_cast<double>(score.images * score.times) / score.seconds);
  if (other) {
    const DenoisingScore theirs = score_of(*other, observer);
    const auto [difference, error] = paired_difference(score.each, theirs.each);
    row.set("against", other->weights.string())
        .set("against_mse", theirs.mse)
        .set("difference", difference)
        .set("difference_se", error);
  }
  if (request.each) row.set("each", finite_or_null(score.each));
  observer.row(row);
}

}  // namespace mhla::apps
