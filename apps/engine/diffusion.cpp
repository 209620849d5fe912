#include "apps/engine/diffusion.h"

#include <algorithm>
#include <cmath>

#include "apps/engine/caption_states.h"
#include "apps/engine/paired.h"
#include "apps/engine/training.h"
#include "mhla/core/error.h"
#include "mhla/core/memory.h"
#include "mhla/io/prompts.h"
#include "mhla/io/utf8.h"
#include "mhla/language/caption_tokens.h"
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

constexpr const char* kTrainCommand = "train diffusion";

// States of the prompts that sheets of samples show; undefined: none are given.
Conditioning sheet_prompts(const DiffusionOptions& options, const NetworkConfig& network,
                           const DiffusionSource& source) {
  if (options.sample_prompts.empty()) return {};
  std::vector<std::string> prompts;
  read_prompts(kTrainCommand, options.sample_prompts, prompts);
  prompts.resize(std::min<std::size_t>(prompts.size(), DiffusionTask::kShown));
  for (const std::string& prompt : prompts)
    if (!is_utf8(prompt)) fail(kTrainCommand, ": --sample-prompts has a line that is not UTF-8 text");
  const LatentSetConfig& set = source.latents->test_set->config();
  const fs::path encoder = options.text_encoder.empty() ? set.text_encoder : options.text_encoder;
  if (!fs::exists(encoder / "config.json"))
    fail(kTrainCommand, ": --sample-prompts needs the text encoder of the captions, which is not in ", encoder.string(),
         ", expected --text-encoder DIR");
  const SanaConfig& c = network.sana();
  const Gemma2Config config = read_gemma2_config(encoder / "config.json");
  if (config.hidden_size != c.caption_dim)
    fail(kTrainCommand, ": ", encoder.string(), " has states of ", config.hidden_size, " channels, expected the ",
         c.caption_dim, " of the captions");
  expect_whole_captions(kTrainCommand, *caption_tokenizer(kTrainCommand, encoder, config.vocab_size), prompts,
                        sana_instruction(), c.caption_tokens);
  const ModelSize size = size_of(config, 512);
  const torch::Device device = device_of(options.train.device);
  expect_fits(str(kTrainCommand, ": the text encoder of --sample-prompts"),
              MemoryEstimate().add("weights", 2 * size.parameters).add("activations", 4 * size.passing),
              device.is_cuda() ? device_memory_at_hand(device.index()) : memory_at_hand());
  return CaptionEncoder(kTrainCommand, encoder, c.caption_tokens, device).prompts(prompts);
}

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
  const std::optional<InitSource> init = init_source(kTrainCommand, options.train, folder, start, observer);
  const DiffusionSource source = open_source(options);
  const NetworkConfig network = network_of(options, source);
  if (goes_on && !network.takes_captions())
    expect_same_classes(kTrainCommand, folder, source.class_names(), source.name());
  options = resolved(options, network, source);
  prepare(options.train, observer);
  expect_fits(options, network);
  if (options.train.place.context > 1) say_sharing(options.train, shared_kind(network), observer);
  const Conditioning prompts = sheet_prompts(options, network, source);
  prepare(options.train, observer);  // the seed: an encoder that is made draws from it
  DiffusionTask task(options, source, network);
  if (prompts.captions.defined()) task.show(prompts);
  if (init) note_init(*init, start_from(task.network(), *init, task.generation()), options.origin, start);
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
      denoising_score(run.model, *run.held_out, run.process, run.options, [&](std::int64_t done, std::int64_t of) {
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
  const NetworkConfig &mine = run.model.config(), &theirs = other.model.config();
  expect(mine.image == theirs.image && mine.channels() == theirs.channels(), "samples of another size");
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
                      .set("model", run.model.config().model())
                      .set("attention", run.model.config().attention())
                      .set("process", run.process.generation().process)
                      .set("data", run.held_out->name())
                      .set("held_out", run.held_out_of_training)
                      .set("images", score.images)
                      .set("damaged", score.damaged)
                      .set("times", score.times)
                      .set("mse", score.mse)
                      .set("mse_se", score.mse_se);
  if (run.model.config().learn_sigma()) row.set("vb", score.vb).set("loss", score.loss);
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
