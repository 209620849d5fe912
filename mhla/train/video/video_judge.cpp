#include "mhla/train/video/video_judge.h"

#include <cmath>

#include "mhla/core/error.h"
#include "mhla/data/philox.h"
#include "mhla/io/file.h"
#include "mhla/io/json_object.h"
#include "mhla/train/stop_signal.h"
#include "mhla/train/trainer.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

constexpr const char *kJudgeWeights = "judge.safetensors", *kJudgeFile = "judge.json";
constexpr std::int64_t kJudgeBatch = 64, kJudgeSeed = 77;
constexpr double kJudgeRate = 2e-3, kMostNoise = 0.1;

void add_convolution(torch::nn::Sequential& all, std::int64_t in, std::int64_t out, torch::ExpandingArray<3> stride) {
  all->push_back(torch::nn::Conv3d(torch::nn::Conv3dOptions(in, out, 3).stride(stride).padding(1)));
  all->push_back(torch::nn::GroupNorm(torch::nn::GroupNormOptions(8, out)));
  all->push_back(torch::nn::SiLU());
}

}  // namespace

VideoJudgeImpl::VideoJudgeImpl() {
  torch::nn::Sequential all;
  add_convolution(all, 3, 32, {{1, 2, 2}}), add_convolution(all, 32, 64, 2);
  add_convolution(all, 64, 128, 2), add_convolution(all, 128, 128, {{1, 2, 2}});
  convolutions_ = register_module("convolutions", all);
  pooled_ = register_module("pooled", torch::nn::Linear(kFeatures * 9, kFeatures));
  for (std::size_t i = 0; i < GarmentAttributes::kCount; ++i)
    heads_.push_back(
        register_module(GarmentAttributes::kNames[i], torch::nn::Linear(kFeatures, GarmentAttributes::kValues[i])));
}

torch::Tensor VideoJudgeImpl::features(const torch::Tensor& clips) {
  const torch::Tensor h = convolutions_->forward(clips);
  const torch::Tensor mean = torch::adaptive_avg_pool3d(h, {2, 2, 2}).flatten(1);
  return torch::silu(pooled_(torch::cat({mean, h.amax({2, 3, 4})}, 1)));
}

std::vector<torch::Tensor> VideoJudgeImpl::read(const torch::Tensor& features) {
  std::vector<torch::Tensor> logits;
  for (torch::nn::Linear& head : heads_) logits.push_back(head(features));
  return logits;
}

torch::Tensor attributes_of(const VideoItems& items, const std::vector<std::int64_t>& numbers) {
  std::vector<std::int64_t> values;
  for (const std::int64_t item : numbers) {
    const std::optional<GarmentAttributes> found = garment_attributes(items.caption(item));
    if (!found) fail("judge: the caption '", items.caption(item), "' of ", items.name(), " is none of moving garments");
    values.insert(values.end(), found->values.begin(), found->values.end());
  }
  return torch::tensor(values, torch::kLong).view({-1, static_cast<std::int64_t>(GarmentAttributes::kCount)});
}

VideoJudge train_judge(const VideoItems& train, const JudgeTraining& how, const EvalProgress& progress) {
  const torch::Device device = device_of(how.device);
  at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
  const torch::Tensor state = generator.get_state();
  torch::manual_seed(kJudgeSeed);
  VideoJudge judge;
  judge->to(device);
  torch::optim::AdamW optimizer(judge->parameters(), torch::optim::AdamWOptions(kJudgeRate));
  TrainOptions options;
  options.precision = how.precision;
  for (std::int64_t step = 0; step < how.steps; ++step) {
    leave_when_stopped();
    std::vector<std::int64_t> items;
    Philox random(kJudgeSeed, Philox::kSubset, 0, step);
    for (std::int64_t i = 0; i < kJudgeBatch; ++i) items.push_back(random.below(train.size()));
    std::vector<std::string> damaged;
    const VideoBatch batch = train.read(items, device, damaged);
    const torch::Tensor clips = shuffled(batch.x, how.unshuffle);
    const torch::Tensor wanted = attributes_of(train, batch.items).to(device);
    const torch::Tensor strength = torch::rand({clips.size(0), 1, 1, 1, 1}, clips.options()) * kMostNoise;
    for (auto& group : optimizer.param_groups())
      static_cast<torch::optim::AdamWOptions&>(group.options())
          .lr(kJudgeRate * 0.5 * (1 + std::cos(M_PI * static_cast<double>(step) / static_cast<double>(how.steps))));
    torch::Tensor loss;
    {
      const Autocast autocast(options, device);
      const std::vector<torch::Tensor> said = judge->read(judge->features(clips + strength * torch::randn_like(clips)));
      for (std::size_t i = 0; i < said.size(); ++i) {
        const torch::Tensor one = torch::nn::functional::cross_entropy(said[i].to(torch::kFloat),
                                                                       wanted.select(1, static_cast<std::int64_t>(i)));
        loss = loss.defined() ? loss + one : one;
      }
    }
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (progress) progress(step + 1, how.steps);
  }
  judge->eval();
  generator.set_state(state);
  return judge;
}

bool has_judge(const std::filesystem::path& folder) { return std::filesystem::exists(folder / kJudgeFile); }

void save_judge(const VideoJudgeImpl& judge, const std::vector<std::int64_t>& shape, std::int64_t steps,
                const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  write_tensors(folder / kJudgeWeights, tensors_of(judge));
  JsonValue sizes = JsonValue::array();
  for (const std::int64_t size : shape) sizes.push(size);
  write_file(folder / kJudgeFile, write_json(JsonValue().set("shape", sizes).set("steps", steps)) + "\n");
}

VideoJudge load_judge(const std::filesystem::path& folder, const std::vector<std::int64_t>& shape) {
  const std::string file = (folder / kJudgeFile).string();
  const JsonValue known = read_json_object(file);
  labelled(file, [&] {
    const JsonValue::Array& sizes = known.at("shape").items();
    bool same = sizes.size() == shape.size();
    for (std::size_t i = 0; same && i < shape.size(); ++i) same = sizes[i].as_int() == shape[i];
    if (!same)
      fail("is a judge of clips of shape ", write_json(known.at("shape")), ", expected that of the run's clips");
  });
  VideoJudge judge;
  read_tensors(Safetensors::read(folder / kJudgeWeights), "", tensors_of(*judge));
  judge->eval();
  return judge;
}

Motion motion_of(const torch::Tensor& clips, const torch::Tensor& grounds) {
  constexpr double kLeast = 0.15;  // of a pixel's difference from the ground that counts
  std::vector<double> colours;
  const torch::Tensor numbers = grounds.cpu();
  for (std::int64_t i = 0; i < numbers.size(0); ++i)
    for (const double part : garment_ground(numbers[i].item<std::int64_t>())) colours.push_back(part);
  const torch::Tensor ground = torch::tensor(colours, clips.options().dtype(torch::kFloat)).view({-1, 3, 1, 1, 1});
  const torch::Tensor d =
      (clips.to(torch::kFloat) / 2 + 0.5 - ground).abs().sum(1).clamp_min(kLeast) - kLeast;  // [B, F, H, W]
  const auto places = [&](std::int64_t axis) { return torch::arange(d.size(axis), d.options()) + 0.5; };
  const torch::Tensor mass = d.sum({2, 3}).clamp_min(1e-3);
  const torch::Tensor centre =
      torch::stack({(d.sum(3) * places(2)).sum(2) / mass, (d.sum(2) * places(3)).sum(2) / mass}, -1);  // [B, F, 2]
  const std::int64_t F = d.size(1);
  Motion motion;
  motion.jitter = motion.flicker = torch::zeros({d.size(0)}, d.options());
  if (F > 2) {
    const torch::Tensor bend = centre.narrow(1, 2, F - 2) - 2 * centre.narrow(1, 1, F - 2) + centre.narrow(1, 0, F - 2);
    motion.jitter = std::get<0>(bend.norm(2, -1).median(1));
  }
  if (F > 1) motion.flicker = (mass.narrow(1, 1, F - 1) - mass.narrow(1, 0, F - 1)).abs().mean(1) / mass.mean(1);
  return motion;
}

}  // namespace mhla::train
