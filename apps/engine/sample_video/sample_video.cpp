// `mhla sample video`: everything that can be wrong is found first; then texts are encoded, and each video is denoised
// and decoded. The noise is keyed by the seed, so neither an interruption nor the device changes it.
#include "apps/engine/sample_video/sample_video.h"

#include <chrono>

#include "apps/engine/sample_video/video_captions.h"
#include "apps/engine/sample_video/video_models.h"
#include "apps/engine/sample_video/video_state.h"
#include "mhla/core/run_failed.h"
#include "mhla/core/seconds.h"
#include "mhla/diffusion/graph_denoiser.h"
#include "mhla/diffusion/guidance.h"
#include "mhla/diffusion/sample.h"
#include "mhla/io/file.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_object.h"
#include "mhla/train/opening.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;
using VideoClock = std::chrono::steady_clock;

class VideoProgress {
 public:
  VideoProgress(std::int64_t videos, std::int64_t steps, train::Observer& observer)
      : videos_(videos), steps_(steps), observer_(observer) {}
  void stepped(std::int64_t video, std::int64_t step) {
    const auto all = static_cast<double>(videos_ * steps_), at = static_cast<double>(video * steps_ + step);
    if (begun_ < 0) begun_ = at - 1, start_ = VideoClock::now();  // the first step warms up
    const double made = at - begun_ - 1, seconds = seconds_since(start_);
    observer_.progress(row("denoising", video)
                           .set("step", step)
                           .set("steps", steps_)
                           .set("share", at / all)
                           .set("eta_s", made > 0 ? seconds * (all - at) / made : 0.0));
  }
  void decoded(std::int64_t video, std::int64_t frame, std::int64_t frames) const {
    observer_.progress(row("decoding", video)
                           .set("step", frame)
                           .set("steps", frames)
                           .set("share", static_cast<double>(frame) / static_cast<double>(frames)));
  }

 private:
  [[nodiscard]] JsonValue row(const char* kind, std::int64_t video) const {
    return JsonValue().set("kind", kind).set("video", video + 1).set("videos", videos_);
  }
  std::int64_t videos_, steps_;
  train::Observer& observer_;
  double begun_ = -1;
  VideoClock::time_point start_ = VideoClock::now();
};

// The settings of several videos, beside them: a second start goes on where the first ended.
class VideoList {
 public:
  VideoList(const VideoPlan& plan, const SampleVideoRequest& r)
      : path_(fs::path(r.out).replace_extension(".json")), several_(plan.prompts.size() > 1) {
    if (!several_) return;
    JsonValue prompts = JsonValue::array();
    for (const VideoPrompt& prompt : plan.prompts)
      prompts.push(JsonValue::object()
                       .set("prompt", prompt.text)
                       .set("negative", prompt.negative)
                       .set("seed", std::to_string(prompt.seed)));
    list_ = JsonValue::object().set("settings", plan.settings).set("videos", prompts);
    skips_ = is_there(path_) && !r.overwrite;
    if (skips_) {
      if (!(read_json_object(path_) == list_))
        fail(kVideoCommand, ": the videos of ", path_.string(),
             " have other prompts or settings: expected the same, --overwrite or another --out");
      return;
    }
    for (const VideoPrompt& prompt : plan.prompts)
      if (!r.overwrite && is_there(prompt.out))
        fail(kVideoCommand, ": ", prompt.out.string(), " is there already, expected --overwrite or another --out");
  }
  void begin() const {
    if (several_ && !skips_) write_file(path_, write_json(list_, 2) + "\n");
  }
  [[nodiscard]] bool is_done(const VideoPrompt& prompt) const {
    return skips_ && is_there(is_frames_folder(prompt.out) ? prompt.out / "video.json" : prompt.out);
  }

 private:
  fs::path path_;
  bool several_, skips_ = false;
  JsonValue list_;
};

fs::path preview_path(const fs::path& out, std::int64_t step) {
  std::string number = std::to_string(step);
  number.insert(0, 4 - std::min<std::size_t>(4, number.size()), '0');
  return out.parent_path() / str(out.stem().string(), "-step-", number, ".png");
}

class VideoJob {
 public:
  VideoJob(const SampleVideoRequest& r, const VideoPlan& plan, const VideoMemory& memory, torch::Device device,
           VideoModels& models, VideoProgress& progress)
      : r_(r), plan_(plan), memory_(memory), device_(device), models_(models), progress_(progress) {}

  // Latents after the last step. `state`: where to start, with its texts; step 0 is noise.
  torch::Tensor denoised(const VideoPrompt& prompt, VideoState state, std::int64_t number) {
    const std::unique_ptr<Sampler> sampler = make_sampler(plan_.flow, plan_.sampler);
    if (state.step == sampler->steps()) return state.x;
    const auto on_device = [&](const torch::Tensor& x) { return x.defined() ? x.to(device_) : x; };
    if (state.step > 0) {
      for (auto& [name, value] : state.memory) value = value.to(device_);
      sampler->recall(state.step, state.memory);
    }
    GuidanceOptions guidance;
    guidance.scale = plan_.guided() ? plan_.guidance : 1.0, guidance.together = memory_.rows_together;
    GraphDenoiser network(*models_.transformer().ptr());
    GuidedDenoiser guided(network, guidance, {{}, on_device(state.negative), {}});
    SampleRequest request;
    request.shape = {plan_.latent.begin(), plan_.latent.end()};
    request.numbers = {0}, request.seed = prompt.seed, request.device = device_;
    request.start = state.x, request.first = state.step;
    request.condition.captions = on_device(state.text);
    const std::string keep = !r_.save_latents.empty() ? r_.save_latents : r_.resume;
    const JsonValue settings = plan_.settings_of(prompt);
    return sample(guided, *sampler, request, [&](const SampleProgress& p) {
      if (!keep.empty())
        write_video_state(keep, {p.step, p.x, sampler->memory(), state.text, state.negative}, settings);
      progress_.stepped(number, p.step);
      leave_when_stopped(p.step, keep);
      if (r_.preview == 0 || p.step % r_.preview != 0 || p.step == p.steps) return;
      models_.decode(p.x_start.narrow(2, 0, 1),
                     [&](const Image& image) { write_file(preview_path(prompt.out, p.step), encode_png(image)); });
    });
  }

  void write(const VideoPrompt& prompt, const torch::Tensor& latents, std::int64_t number) {
    const std::unique_ptr<VideoWriter> writer = open_video_writer(prompt.out, plan_.video(r_, prompt));
    std::int64_t frames = 0;
    models_.decode(latents, [&](const Image& image) {
      writer->frame(image);
      progress_.decoded(number, ++frames, plan_.frames);
      leave_when_stopped(0, "");
    });
    writer->end();
  }

 private:
  void leave_when_stopped(std::int64_t step, const std::string& kept) const {
    if (signal_.name() == nullptr) return;
    if (step == 0) throw RunFailed(str(kVideoCommand, ": stopped by ", signal_.name(), " while decoding"));
    throw RunFailed(str(kVideoCommand, ": stopped by ", signal_.name(), " after step ", step, " of ",
                        plan_.sampler.steps, kept.empty() ? "" : "; continue with --resume " + kept));
  }

  const SampleVideoRequest& r_;
  const VideoPlan& plan_;
  const VideoMemory& memory_;
  torch::Device device_;
  VideoModels& models_;
  VideoProgress& progress_;
  const train::StopSignal signal_;
};

}  // namespace

void sample_video(const SampleVideoRequest& r, train::Observer& observer) {
  const VideoPlan plan = plan_video(r);
  const VideoList list(plan, r);
  VideoState resumed;
  if (!r.resume.empty()) resumed = read_video_state(r.resume, plan);
  const torch::Tensor noise = r.noise.empty() ? torch::Tensor() : read_video_noise(r.noise, plan);
  std::optional<VideoCaptions> captions;  // those of a video that goes on are with it
  if (resumed.step == 0) captions.emplace(plan, r);
  const bool encodes = captions && captions->missing() > 0;
  expect_weights_of(plan, encodes);
  for (const std::string& file : {r.save_latents, r.text_cache}) {
    if (file.empty()) continue;
    const AtomicFile place(file);  // whether it can be written
  }

  train::TrainOptions machine;
  machine.device = plan.device, machine.threads = r.threads;
  train::prepare(machine, observer);
  const torch::Device device = train::device_of(plan.device);
  const VideoMemory memory = plan_video_memory(r, plan, device, encodes ? captions->longest() : 0);
  JsonValue lines = JsonValue::array();
  for (const std::string& line : memory.lines) lines.push(line);
  observer.row(JsonValue().set("kind", "plan").set("lines", lines));

  list.begin();
  const auto start = VideoClock::now();
  if (encodes) captions->encode(memory.encoder_on_host ? torch::Device(torch::kCPU) : device);
  const torch::ScalarType dtype = plan.precision == "bf16" ? torch::kBFloat16 : torch::kFloat;
  VideoModels models(plan, memory, device, dtype);
  const auto count = static_cast<std::int64_t>(plan.prompts.size());
  VideoProgress progress(count, plan.sampler.steps, observer);
  VideoJob job(r, plan, memory, device, models, progress);
  std::int64_t made = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const VideoPrompt& prompt = plan.prompts[static_cast<std::size_t>(i)];
    if (list.is_done(prompt)) continue;
    const auto begun = VideoClock::now();
    VideoState state = resumed;
    if (captions) {
      state.x = noise, state.text = captions->states(prompt.text);
      if (plan.guided()) state.negative = captions->states(prompt.negative);
    }
    const torch::Tensor latents = job.denoised(prompt, state, i);
    const double denoising = seconds_since(begun);
    job.write(prompt, latents, i);
    ++made;
    observer.row(JsonValue()
                     .set("kind", "video")
                     .set("out", prompt.out.string())
                     .set("prompt", prompt.text)
                     .set("seed", std::to_string(prompt.seed))
                     .set("frames", plan.frames)
                     .set("size", plan.settings.at("size"))
                     .set("denoise_s", denoising)
                     .set("decode_s", seconds_since(begun) - denoising));
  }
  observer.row(JsonValue()
                   .set("kind", "sampled")
                   .set("model", plan.network.model)
                   .set("attention", plan.network.attention)
                   .set("sampler", plan.sampler.sampler)
                   .set("steps", plan.sampler.steps)
                   .set("guidance", plan.guidance)
                   .set("videos", made)
                   .set("kept", count - made)
                   .set("seconds", seconds_since(start)));
}

}  // namespace mhla::apps
