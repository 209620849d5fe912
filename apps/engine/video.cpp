#include "apps/engine/video.h"

#include <cmath>

#include "apps/engine/paired.h"
#include "apps/engine/training.h"
#include "apps/engine/video_judging.h"
#include "mhla/core/error.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/video/open_video.h"
#include "mhla/train/video/video_init.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

// The words of a model that exists: of the run that goes on, or of the one to start from.
std::optional<CaptionWords> known_words(const fs::path& run, bool goes_on, const std::string& init) {
  for (const fs::path& folder : {goes_on ? run : fs::path(), fs::path(init)})
    if (!folder.empty() && fs::exists(folder / kWordsFile)) return CaptionWords::read(folder);
  return {};
}

void train_video_here(const TrainRequest<VideoOptions>& request, VideoOptions options, Observer& observer) {
  const fs::path folder = request.out;
  check(options);
  RunStart start{.resume = request.resume, .overwrite = request.overwrite};
  const bool goes_on = start.resume && fs::exists(folder / "train.json");
  if (goes_on) options.model = model_of(options.model, folder);
  expect_room(folder, start);  // before anything is written into it
  note_origin(options);
  const VideoOptions typed = options;
  options = located(options);
  const std::optional<InitSource> init = init_source("train video", options.train, folder, start, observer);
  const std::int64_t tokens = named_network(options).text_tokens;
  const VideoSource source = open_source(options, tokens, known_words(folder, goes_on, options.train.init));
  const WanConfig network = network_of(options, source);
  options = resolved(options, network, source);
  prepare(options.train, observer);
  expect_fits(options, network, source);
  if (options.train.place.context > 1) say_sharing(options.train, shared_kind(network, source), observer);
  VideoTask task(options, source, network);
  if (init) note_init(*init, start_from(task.wan(), *init), options.origin, start);
  if (!options.teacher.empty()) task.set_teacher(open_teacher(options, network, source, observer));
  settle_warmup(task, options.train, start);
  Trainer trainer(task, options.train, folder, options_to_json(as_typed(options, typed)), observer);
  run_to_end(trainer, start, folder);
}

VideoScore score_of(VideoRun& run, Observer& observer) {
  VideoScore score = video_score(*run.model, *run.source.test, run.options, [&](std::int64_t done, std::int64_t of) {
    observer.progress(JsonValue().set("kind", "eval").set("step", done).set("of", of).set("samples", "clips"));
  });
  if (!std::isfinite(score.mse)) throw not_finite("eval video", run.weights);
  for (const std::string& text : score.warnings) warn(observer, text);
  return score;
}

// An Error that names what two runs differ in, where it is more than their networks.
void expect_comparable(const VideoRun& run, const VideoRun& other, const std::string& against) {
  const auto expect = [&](bool same, const char* what) {
    if (!same) fail("eval video: --against is ", against, ", which has ", what, " than --run, expected the same");
  };
  expect(run.options.eval_times == other.options.eval_times, "other times of evaluation (eval_times)");
  expect(run.source.shape() == other.source.shape(), "clips of another size");
  expect(run.source.test->name() == other.source.test->name() &&
             run.source.test->checksum() == other.source.test->checksum() &&
             run.options.test_seed == other.options.test_seed && run.options.hold_out == other.options.hold_out,
         "other held-out clips (data, test_clips, test_seed, hold_out)");
}

}  // namespace

void train_video(const TrainRequest<VideoOptions>& request, Observer& observer) {
  VideoOptions options = request.options;
  in_team(options.train, observer, [&](Observer& heard) { train_video_here(request, options, heard); });
}

void eval_video(const EvalVideoRequest& request, Observer& observer) {
  VideoRun run = open_video_run("eval video", request.open, request.data, observer);
  std::optional<VideoRun> other;
  if (!request.against.empty()) {
    OpenOptions open = request.open;
    open.run = request.against;
    other.emplace(open_video_run("eval video", open, request.data, observer));
    expect_comparable(run, *other, request.against);
  }
  if (!request.judge.empty()) expect_judgeable(run, request);
  const VideoScore score = score_of(run, observer);
  JsonValue by_time = JsonValue::array();
  for (std::size_t i = 0; i < score.times.size(); ++i)
    by_time.push(JsonValue().set("s", score.times[i]).set("mse", score.by_time[i]));
  JsonValue row = JsonValue()
                      .set("kind", "eval")
                      .set("weights", run.weights.string())
                      .set("model", run.network.model)
                      .set("attention", run.network.attention)
                      .set("data", run.source.test->name())
                      .set("held_out", run.source.held_out)
                      .set("clips", score.clips)
                      .set("damaged", score.damaged)
                      .set("mse", score.mse)
                      .set("mse_se", score.mse_se)
                      .set("by_time", by_time)
                      .set("clips_per_s",
                           static_cast<double>(score.clips) * static_cast<double>(score.times.size()) / score.seconds);
  if (other) {
    const VideoScore theirs = score_of(*other, observer);
    const auto [difference, error] = paired_difference(score.each, theirs.each);
    row.set("against", other->weights.string())
        .set("against_mse", theirs.mse)
        .set("difference", difference)
        .set("difference_se", error);
  }
  if (request.each) row.set("each", finite_or_null(score.each));
  if (!request.judge.empty()) row.set("judged", judged(run, request, observer));
  observer.row(row);
}

}  // namespace mhla::apps
