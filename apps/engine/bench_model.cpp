// One model, one pass: a forward without gradients, or a whole training step (bench_training.h). "plain" is MHLA in
// LibTorch operators, held to the kernels before it is timed.
#include "apps/engine/bench_model.h"

#include <algorithm>
#include <functional>

#include "apps/engine/bench_training.h"
#include "apps/engine/step_profile.h"
#include "mhla/core/error.h"
#include "mhla/diffusion/flow.h"
#include "mhla/diffusion/gaussian.h"
#include "mhla/diffusion/graph_denoiser.h"
#include "mhla/models/dit/dit.h"
#include "mhla/models/sana/sana.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"

namespace mhla::apps {
namespace {

using namespace mhla::train;

constexpr const char* kPlain = "plain";

// A model of images as this command sees it: a classifier or a diffusion transformer.
struct ImageModel {
  std::string name;
  std::int64_t side = 0, tokens = 0, M = 0;  // side of an image
  std::shared_ptr<torch::nn::Module> module;
  std::vector<AttentionLayer> layers;  // SANA: none
  std::function<torch::Tensor()> forward;
  std::function<torch::Tensor()> loss;
  std::function<void()> constrain;
};

void use_plain_code(const ImageModel& model, bool plain) {
  for (const AttentionLayer& layer : model.layers) {
    if (auto mhla = std::dynamic_pointer_cast<MhlaAttentionImpl>(layer.attention)) mhla->use_plain_code(plain);
  }
}

ClassifierConfig network_of(const BenchClassifierRequest& request) {
  const std::string& attention = request.bench.attention;
  ClassifierConfig config = classifier_config(request.bench.model, attention == kPlain ? "mhla" : attention);
  if (request.image > 0) config.image = {request.image, request.image};
  if (request.blocks) {
    for (auto& stage : config.blocks) stage = *request.blocks;
  }
  check(config);
  return config;
}

DitConfig dit_of(const BenchClassifierRequest& request) {
  const std::string& attention = request.bench.attention;
  DitConfig config = dit_config(request.bench.model, attention == kPlain ? "mhla" : attention);
  if (request.image > 0) config.image = {request.image, request.image};
  if (request.blocks) config.blocks = *request.blocks;
  check(config);
  return config;
}

// SANA in the shape that is asked for, and the side of its latents.
std::pair<SanaConfig, std::int64_t> sana_of(const BenchClassifierRequest& request) {
  constexpr std::int64_t kUsualSide = 32;  // 1024 pixels
  SanaConfig config = sana_config(request.bench.model, request.bench.attention);
  if (request.blocks) config.blocks = *request.blocks;
  check(config);
  return {config, request.image > 0 ? request.image : kUsualSide};
}

bool is_one_of(const std::string& model, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), model) != names.end();
}

std::int64_t product(const std::array<std::int64_t, 3>& axes) { return axes[0] * axes[1] * axes[2]; }

ImageModel classifier_model(const ClassifierConfig& config, std::int64_t batch, const torch::Device& device) {
  const AnyClassifier model = make_classifier(config);
  model->to(device);
  const torch::Tensor images = torch::randn({batch, config.channels, config.image[0], config.image[1]}).to(device);
  const torch::Tensor labels = torch::randint(config.classes, {batch}, torch::kLong).to(device);
  const auto forward = [=] { return model->forward(images); };
  const Layout layout = model->attention_layers().front().layout;
  return {config.model,
          config.image[0],
          product(layout.grid),
          product(layout.blocks),
          model,
          model->attention_layers(),
          forward,
          [=] { return torch::nn::functional::cross_entropy(forward(), labels); },
          [=] { model->constrain(); }};
}

// `narrow`: weights in bf16, as `sample` has them.
ImageModel dit_model(const DitConfig& config, std::int64_t batch, const torch::Device& device, bool narrow) {
  const auto model = std::make_shared<DitImpl>(config);
  {  // it starts with an output of zeros, with which plain code could not be compared
    const torch::NoGradGuard no_gradients;
    for (const auto& item : model->named_parameters())
      if (item.value().requires_grad() && item.key().find(".mix") == std::string::npos)
        item.value().add_(torch::randn_like(item.value()), 0.02);
  }
  model->to(device, narrow ? torch::kBFloat16 : torch::kFloat);
  GaussianOptions process;
  process.variance = config.learn_sigma ? "learned_range" : "fixed_large";
  const auto diffusion = std::make_shared<GaussianDiffusion>(process);
  const torch::Tensor x = torch::randn({batch, config.channels, config.image[0], config.image[1]}).to(device);
  const torch::Tensor noise = torch::randn_like(x);
  const torch::Tensor index = torch::randint(process.steps, {batch}, torch::kLong).to(device);
  const Conditioning condition{torch::randint(config.classes, {batch}, torch::kLong).to(device), {}, {}};
  const auto network = std::make_shared<GraphDenoiser>(*model);  // as `sample` calls it
  const Layout layout = model->attention_layers().front().layout;
  return {config.model,
          config.image[0],
          product(layout.grid),
          product(layout.blocks),
          model,
          model->attention_layers(),
          [=] { return network->denoise(x, index, condition); },
          [=] { return diffusion->loss(*model, x, noise, index, condition).total.mean(); },
          [=] { model->constrain(); }};
}

// With captions of full length.
ImageModel sana_model(const SanaConfig& config, std::int64_t side, std::int64_t batch, const torch::Device& device,
                      bool narrow) {
  const auto model = std::make_shared<SanaImpl>(config);
  model->to(device, narrow ? torch::kBFloat16 : torch::kFloat);
  const auto flow = std::make_shared<FlowMatching>(FlowOptions());
  const torch::Tensor x = torch::randn({batch, config.channels, side, side}).to(device);
  const torch::Tensor noise = torch::randn_like(x);
  const torch::Tensor index = flow->index_of(torch::randn({batch})).to(device);
  const torch::Tensor t = torch::full({batch}, 500.0, x.options());
  const Conditioning condition{{},
                               torch::randn({batch, config.caption_tokens, config.caption_dim}).to(device),
                               torch::ones({batch, config.caption_tokens}, torch::kLong).to(device)};
  const auto network = std::make_shared<GraphDenoiser>(*model);
  const std::int64_t cells = side / config.patch;
  return {config.model,
          side,
          cells * cells,
          config.attention == "mhla" ? config.blocks[0] * config.blocks[1] : 1,
          model,
          {},
          [=] { return network->denoise(x, t, condition); },
          [=] { return flow->loss(*model, x, noise, index, condition).mean(); },
          [=] { model->constrain(); }};
}

// The model that is asked for, its memory checked before it is made.
ImageModel model_of(const BenchClassifierRequest& request, const TrainOptions& options, bool narrow) {
  const torch::Device device = device_of(options.device);
  const auto expect_room = [&](const ModelSize& size) {
    if (request.bench.pass == "train") expect_training_fits("bench model", size, options);
    expect_inference_fits("bench model", size, options.batch, options);
  };
  if (is_one_of(request.bench.model, sana_names())) {
    if (request.bench.attention == kPlain)
      fail("bench model: attention is plain, expected mhla, softmax or linear for ", request.bench.model);
    const auto [config, side] = sana_of(request);
    expect_room(size_of(config, side, side));
    return sana_model(config, side, options.batch, device, narrow);
  }
  if (is_one_of(request.bench.model, dit_names())) {
    const DitConfig config = dit_of(request);
    expect_room(size_of(config));
    return dit_model(config, options.batch, device, narrow);
  }
  const ClassifierConfig config = network_of(request);
  expect_room(size_of(config));
  return classifier_model(config, options.batch, device);
}

}  // namespace

train::TrainOptions options_of(const BenchModelRequest& bench) {
  TrainOptions options;
  options.device = bench.device, options.precision = bench.precision;
  options.threads = bench.threads, options.batch = bench.batch;
  return options;
}

void Measured::add_to(JsonValue& row) const {
  row.set("ms", ms).set("spread", spread);
  if (!profile.is_null()) row.set("profile", profile);
}

Measured measure(const BenchModelRequest& bench, const torch::Device& device, const std::function<void()>& step) {
  constexpr int kSteps = 3;
  constexpr std::size_t kRows = 40;
  Measured measured{time_of(device, bench.min_seconds, step), {}};
  if (bench.profile) measured.profile = profile_of(device, kSteps, step).json(kRows);
  return measured;
}

void bench_classifier(const BenchClassifierRequest& request, Observer& observer) {
  const TrainOptions options = options_of(request.bench);
  const std::string &attention = request.bench.attention, &pass = request.bench.pass;
  prepare(options, observer);
  const torch::Device device = device_of(options.device);
  const bool generates = is_one_of(request.bench.model, dit_names()) || is_one_of(request.bench.model, sana_names());
  const bool narrow = generates && pass == "fwd" && options.precision == "bf16";
  const ImageModel model = model_of(request, options, narrow);

  model.module->eval();
  const auto output = [&] {
    const torch::NoGradGuard no_gradients;
    if (narrow) return model.forward();
    const Autocast autocast(options, device);
    return model.forward();
  };
  if (attention == kPlain) {
    const torch::Tensor want = output().to(torch::kFloat);
    use_plain_code(model, true);
    const double off = ((output().to(torch::kFloat) - want).norm() / want.norm()).item<double>();
    const double most = options.precision == "bf16" ? 5e-2 : 1e-4;
    if (!(off <= most)) throw RunFailed(str("bench model: plain code is off by ", off, ", expected at most ", most));
  }
  forget_peak();
  Measured measured;
  if (pass == "fwd") {
    measured = measure(request.bench, device, [&] { output(); });
  } else {
    measured = measure_training(request.bench, device, {*model.module, model.loss, model.constrain});
  }
  std::int64_t parameters = 0;
  for (const torch::Tensor& parameter : model.module->parameters()) parameters += parameter.numel();
  JsonValue row = JsonValue()
                      .set("model", model.name)
                      .set("attention", attention)
                      .set("image", model.side)
                      .set("tokens", model.tokens)
                      .set("M", model.M)
                      .set("batch", options.batch)
                      .set("pass", pass)
                      .set("device", options.device)
                      .set("precision", options.precision)
                      .set("threads", ops::num_threads())
                      .set("parameters", parameters)
                      .set("images_per_s", 1e3 * static_cast<double>(options.batch) / measured.ms);
  measured.add_to(row);
  if (!device.is_cuda()) row.set("peak_mib", peak_mib());  // of the process: a card's memory is not in it
  observer.row(row);
}

}  // namespace mhla::apps
