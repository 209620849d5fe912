#include "apps/engine/video_judging.h"

#include "mhla/core/error.h"
#include "mhla/diffusion/metrics/frechet.h"
#include "mhla/ops/tensor_view.h"
#include "mhla/train/trainer.h"
#include "mhla/train/video/video_judge.h"

namespace mhla::apps {

using namespace mhla::train;

namespace {

// What the judge found in some clips.
struct Found {
  FeatureStats features{VideoJudgeImpl::kFeatures};
  std::vector<double> right = std::vector<double>(GarmentAttributes::kCount, 0.0);  // clips, by attribute
  double jitter = 0, flicker = 0, clips = 0;

  void add(VideoJudgeImpl& judge, const torch::Tensor& clips_given, const torch::Tensor& attributes) {
    const torch::Tensor features_now = judge.features(clips_given).to(torch::kFloat);
    const std::vector<torch::Tensor> said = judge.read(features_now);
    const torch::Tensor rows = features_now.cpu().contiguous();
    features.add(ops::view_of(rows, "eval video", "features"));
    for (std::size_t i = 0; i < said.size(); ++i) {
      const torch::Tensor wanted = attributes.select(1, static_cast<std::int64_t>(i)).to(said[i].device());
      right[i] += said[i].argmax(1).eq(wanted).sum().item<double>();
    }
    const Motion motion = motion_of(clips_given, attributes.select(1, GarmentAttributes::kCount - 1));
    jitter += motion.jitter.sum().item<double>(), flicker += motion.flicker.sum().item<double>();
    clips += static_cast<double>(clips_given.size(0));
  }
};

std::vector<std::int64_t> numbers_from(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(first + i);
  return numbers;
}

VideoJudge judge_of(const VideoRun& run, const EvalVideoRequest& request, Observer& observer) {
  const std::filesystem::path folder = request.judge;
  if (has_judge(folder)) return load_judge(folder, run.source.shape());
  JudgeTraining how;
  how.steps = request.judge_steps, how.unshuffle = run.options.unshuffle;
  how.device = run.options.train.device, how.precision = run.options.train.precision;
  VideoJudge judge = train_judge(*run.source.train, how, [&](std::int64_t done, std::int64_t of) {
    observer.progress(JsonValue().set("kind", "judge").set("step", done).set("of", of).set("samples", "steps"));
  });
  save_judge(*judge, run.source.shape(), how.steps, folder);
  return judge;
}

}  // namespace

void expect_judgeable(const VideoRun& run, const EvalVideoRequest& request) {
  if (run.source.is_latent() || !garment_attributes(run.source.test->caption(0)))
    fail("eval video: --judge is given for ", run.source.test->name(), ", expected a run on moving-garments");
  if (request.samples > run.source.test->size())
    fail("eval video: --samples is ", request.samples, ", expected at most the ", run.source.test->size(),
         " held-out clips of the run (test_clips)");
  if (!(request.guidance >= 0 && request.guidance <= 1000))
    fail("eval video: --guidance is ", request.guidance, ", expected 0 to 1000");
}

JsonValue judged(VideoRun& run, const EvalVideoRequest& request, Observer& observer) {
  const VideoOptions& o = run.options;
  const torch::Device device = device_of(o.train.device);
  VideoJudge judge = judge_of(run, request, observer);
  judge->to(device);
  const torch::NoGradGuard no_gradient;
  run.model->eval();
  Found samples, real, training;
  std::vector<std::string> damaged;
  const std::int64_t batch = std::min(o.train.batch, request.samples);
  for (std::int64_t first = 0; first < request.samples; first += batch) {
    const std::vector<std::int64_t> numbers = numbers_from(first, std::min(batch, request.samples - first));
    const VideoBatch held_out = run.source.test->read(numbers, device, damaged);
    const torch::Tensor attributes = attributes_of(*run.source.test, held_out.items);
    ClipRequest clip;
    clip.captions = held_out.captions, clip.numbers = held_out.items, clip.shape = run.source.shape();
    clip.steps = request.steps, clip.guidance = request.guidance, clip.shift = o.shift;
    clip.unshuffle = o.unshuffle, clip.seed = static_cast<std::uint64_t>(request.seed);
    clip.together = static_cast<std::int64_t>(numbers.size());
    torch::Tensor made;
    {
      const Autocast autocast(o.train, device);
      made = sample_clips(*run.model, clip, [&](std::int64_t step, std::int64_t of) {
        const std::int64_t done = first + batch * step / of;
        observer.progress(
            JsonValue().set("kind", "samples").set("step", done).set("of", request.samples).set("samples", "clips"));
      });
    }
    samples.add(*judge, made.to(torch::kFloat), attributes);
    real.add(*judge, shuffled(held_out.x, o.unshuffle), attributes);
    const std::vector<std::int64_t> others =
        numbers_from(first, std::min(batch, std::min(request.samples, run.source.train->size()) - first));
    if (others.empty()) continue;
    const VideoBatch seen = run.source.train->read(others, device, damaged);
    training.add(*judge, shuffled(seen.x, o.unshuffle), attributes_of(*run.source.train, seen.items));
  }
  JsonValue attributes = JsonValue::array();
  double mean = 0;
  for (std::size_t i = 0; i < GarmentAttributes::kCount; ++i) {
    attributes.push(JsonValue()
                        .set("name", GarmentAttributes::kNames[i])
                        .set("samples", samples.right[i] / samples.clips)
                        .set("real", real.right[i] / real.clips)
                        .set("chance", 1.0 / static_cast<double>(GarmentAttributes::kValues[i])));
    mean += samples.right[i] / samples.clips / static_cast<double>(GarmentAttributes::kCount);
  }
  return JsonValue()
      .set("samples", request.samples)
      .set("steps", request.steps)
      .set("guidance", request.guidance)
      .set("attributes", attributes)
      .set("attribute_mean", mean)
      .set("frechet", frechet_distance(samples.features, real.features))
      .set("frechet_real", frechet_distance(training.features, real.features))
      .set("jitter", samples.jitter / samples.clips)
      .set("jitter_real", real.jitter / real.clips)
      .set("flicker", samples.flicker / samples.clips)
      .set("flicker_real", real.flicker / real.clips);
}

}  // namespace mhla::apps
