#include "mhla/train/video/video_task.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/data/image_output.h"
#include "mhla/data/philox.h"
#include "mhla/diffusion/guidance.h"
#include "mhla/diffusion/sample.h"
#include "mhla/train/image_data.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

constexpr std::int64_t kFramesShown = 8;           // of a clip on a sheet
constexpr std::int64_t kLeastBetweenSheets = 100;  // steps, where the options leave it open

FlowOptions flow_of(const VideoOptions& o) {
  FlowOptions flow;
  flow.shift = o.shift, flow.logit_mean = o.logit_mean, flow.logit_std = o.logit_std;
  return flow;
}

torch::Tensor to_longs(const std::vector<std::int64_t>& values, const torch::Device& device) {
  return to_device(values.data(), {static_cast<std::int64_t>(values.size())}, torch::kLong, device);
}

}  // namespace

torch::Tensor sample_clips(WanImpl& model, const ClipRequest& given, const EvalProgress& progress) {
  const torch::NoGradGuard no_gradient;
  SampleRequest request;
  request.shape = given.shape, request.numbers = given.numbers, request.seed = given.seed;
  request.condition.captions = given.captions, request.device = given.captions.device();
  request.together = given.together;
  FlowOptions flow;
  flow.shift = given.shift;
  SamplerOptions options;
  options.sampler = "euler", options.steps = given.steps, options.time_grid = "linear";
  const std::unique_ptr<Sampler> sampler = make_sampler(flow, options);
  GuidanceOptions guidance;
  guidance.scale = given.guidance;
  GuidedDenoiser guided(model, guidance);
  const torch::Tensor places = sample(guided, *sampler, request, [&](const SampleProgress& now) {
    leave_when_stopped();
    if (progress) progress(now.step, now.steps);
  });
  return shuffled(places, given.unshuffle).clamp(-1, 1);
}

VideoTask::VideoTask(const VideoOptions& options, const VideoSource& source, const WanConfig& network)
    : options_(options),
      source_(source),
      device_(device_of(options.train.device)),
      process_(generation_of(options, source), options.logit_mean, options.logit_std),
      flow_(flow_of(options)),
      training_(source.train, options),
      model_(network),
      empty_caption_(source.empty_caption.to(device_)) {
  model_->to(device_);
  model_->set_recompute(options.recompute);
  sharing_.emplace(*model_, options_.train);
}

void VideoTask::set_teacher(const Wan& teacher) {
  teacher_ = teacher;
  teacher_->to(device_);
  teacher_->eval();
  for (torch::Tensor& parameter : teacher_->parameters()) parameter.set_requires_grad(false);
}

void VideoTask::write_companions(const std::filesystem::path& folder) const {
  if (source_.words) source_.words->write(folder);
  write_generation_config(folder, process_.generation());
}

TrainBatch VideoTask::next_batch() {
  VideoBatch next = training_.next(warnings_);
  const auto seed = static_cast<std::uint64_t>(options_.train.seed);
  std::vector<std::int64_t> dropped;
  for (std::size_t i = 0; i < next.items.size(); ++i)
    if (Philox(seed, Philox::kDrop, next.epoch, next.items[i]).chance(options_.caption_dropout))
      dropped.push_back(static_cast<std::int64_t>(i));
  if (!dropped.empty())
    next.captions.index_copy_(0, to_longs(dropped, device_), [&] {
      std::vector<std::int64_t> shape = empty_caption_.sizes().vec();
      shape[0] = static_cast<std::int64_t>(dropped.size());
      return empty_caption_.expand(shape).contiguous();
    }());
  const torch::Tensor noise =
      training_noise(seed, next.epoch, next.position, next.items, next.x.sizes().slice(1), device_);
  const torch::Tensor times = to_longs(process_.draw_times(seed, next.epoch, next.items), device_);
  return {.inputs = {next.x, next.captions, times, noise}, .weight = next.x.size(0)};
}

BatchResult VideoTask::forward(const TrainBatch& batch) {
  const torch::Tensor &x = batch.inputs.at(0), &captions = batch.inputs.at(1), &noise = batch.inputs.at(3);
  const torch::Tensor x_t = flow_.add_noise(x, noise, batch.inputs.at(2)), t = flow_.model_t(batch.inputs.at(2));
  const torch::Tensor velocity = model_->forward(x_t, t, captions);
  const torch::Tensor mse = FlowMatching::loss(velocity, x, noise).mean();
  if (teacher_.is_empty()) return {.loss = mse, .sums = {}};
  torch::Tensor wanted;
  {
    const torch::NoGradGuard no_gradient;
    wanted = teacher_->forward(x_t, t, captions);
  }
  const torch::Tensor distance = (velocity.to(torch::kFloat) - wanted.to(torch::kFloat)).square().mean();
  const double share = options_.teacher_share, count = static_cast<double>(batch.weight);
  return {.loss = (1 - share) * mse + share * distance,
          .sums = {{"mse", mse.detach() * count}, {"teacher_mse", distance.detach() * count}}};
}

std::string VideoTask::tested_on() const {
  return str(source_.test->size(), " clips", source_.held_out ? " held out of the training set" : "");
}

Metrics VideoTask::evaluate(const EvalProgress& progress) {
  const VideoScore now = video_score(*model_, *source_.test, options_, progress);
  warnings_.insert(warnings_.end(), now.warnings.begin(), now.warnings.end());
  return {{"mse", now.mse}, {"mse_se", now.mse_se}};
}

std::int64_t VideoTask::picture_every(std::int64_t total_steps) const {
  if (source_.is_latent()) return 0;
  return options_.sample_every.value_or(std::max(kLeastBetweenSheets, total_steps / 10));
}

Image VideoTask::picture(const EvalProgress& progress) {
  const std::int64_t clips = std::min(options_.sample_clips, source_.test->size());
  ClipRequest request;
  for (std::int64_t i = 0; i < clips; ++i) request.numbers.push_back(i);
  std::vector<std::string> damaged;
  const VideoBatch held_out = source_.test->read(request.numbers, device_, damaged);
  if (held_out.items.empty()) fail("train: ", damaged.front());
  request.numbers = held_out.items, request.captions = held_out.captions, request.shape = source_.shape();
  request.steps = options_.sample_steps, request.guidance = options_.sample_guidance, request.shift = options_.shift;
  request.unshuffle = options_.unshuffle, request.together = std::min(options_.train.batch, clips);
  const torch::Tensor videos = sample_clips(*model_, request, progress).to(torch::kCPU, torch::kFloat);
  const std::int64_t frames = videos.size(2), shown = std::min(frames, kFramesShown);
  std::vector<Image> images;
  for (std::int64_t i = 0; i < videos.size(0); ++i)
    for (std::int64_t k = 0; k < shown; ++k) {
      const torch::Tensor frame = videos[i].select(1, k * frames / shown).contiguous();  // [3, rows, columns]
      images.push_back(to_image({frame.data_ptr<float>(), static_cast<std::size_t>(frame.numel())}, 3,
                                static_cast<int>(frame.size(1)), static_cast<int>(frame.size(2))));
    }
  return image_grid(images, static_cast<int>(shown));
}

std::vector<std::string> VideoTask::take_warnings() { return std::exchange(warnings_, {}); }

}  // namespace mhla::train
