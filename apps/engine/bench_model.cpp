// One model, one pass: a forward without gradients, or a whole training step (forward, loss, backward, norm, AdamW,
// constraint). "plain" is MHLA in LibTorch operators, held to the kernels before it is timed.
#include "apps/engine/bench_model.h"

#include "apps/engine/timed.h"
#include "mhla/core/error.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/modules/mhla_attention.h"
#include "mhla/train/adamw.h"
#include "mhla/train/gradients.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"

namespace mhla::apps {
namespace {

using namespace mhla::train;

constexpr const char* kPlain = "plain";

void use_plain_code(const Classifier& model, bool plain) {
  for (const AttentionLayer& layer : model.attention_layers()) {
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

}  // namespace

train::TrainOptions options_of(const BenchModelRequest& bench) {
  TrainOptions options;
  options.device = bench.device, options.precision = bench.precision;
  options.threads = bench.threads, options.batch = bench.batch;
  return options;
}

void bench_classifier(const BenchClassifierRequest& request, Observer& observer) {
  const TrainOptions options = options_of(request.bench);
  const std::string &attention = request.bench.attention, &pass = request.bench.pass;
  const double min_seconds = request.bench.min_seconds;
  const ClassifierConfig config = network_of(request);
  prepare(options, observer);
  const torch::Device device = device_of(options.device);
  const ModelSize size = size_of(config);
  if (pass == "train") expect_training_fits("bench model", size, options);
  expect_inference_fits("bench model", size, options.batch, options);
  const AnyClassifier model = make_classifier(config);
  model->to(device);
  const torch::Tensor images =
      torch::randn({options.batch, config.channels, config.image[0], config.image[1]}).to(device);
  const torch::Tensor labels = torch::randint(config.classes, {options.batch}, torch::kLong).to(device);

  model->eval();
  const auto logits = [&] {
    const torch::NoGradGuard no_gradients;
    const Autocast autocast(options, device);
    return model->forward(images);
  };
  if (attention == kPlain) {
    const torch::Tensor want = logits().to(torch::kFloat);
    use_plain_code(*model, true);
    const double off = ((logits().to(torch::kFloat) - want).norm() / want.norm()).item<double>();
    const double most = options.precision == "bf16" ? 5e-2 : 1e-4;
    if (!(off <= most)) throw RunFailed(str("bench model: plain code is off by ", off, ", expected at most ", most));
  }
  forget_peak();
  Timed timed;
  if (pass == "fwd") {
    timed = time_of(device, min_seconds, [&] { logits(); });
  } else {
    model->train();
    AdamW optimizer(param_groups(*model, options), {});
    timed = time_of(device, min_seconds, [&] {
      torch::Tensor loss;
      {
        const Autocast autocast(options, device);
        loss = torch::nn::functional::cross_entropy(model->forward(images), labels);
      }
      loss.backward();
      const GradientNorms norms = gradient_norms(optimizer.groups(), options.clip_mix_apart.value_or(true));
      optimizer.step(1e-4, gradient_scales(norms, 1.0, options.clip_norm));
      optimizer.zero_grad();
      model->constrain();
    });
  }
  std::int64_t parameters = 0;
  for (const torch::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  const Layout& layout = model->attention_layers().front().layout;
  JsonValue row = JsonValue()
                      .set("model", config.model)
                      .set("attention", attention)
                      .set("image", config.image[0])
                      .set("tokens", layout.grid[0] * layout.grid[1] * layout.grid[2])
                      .set("M", layout.blocks[0] * layout.blocks[1] * layout.blocks[2])
                      .set("batch", options.batch)
                      .set("pass", pass)
                      .set("device", options.device)
                      .set("precision", options.precision)
                      .set("threads", ops::num_threads())
                      .set("parameters", parameters)
                      .set("ms", timed.ms)
                      .set("spread", timed.spread)
                      .set("images_per_s", 1e3 * static_cast<double>(options.batch) / timed.ms);
  if (!device.is_cuda()) row.set("peak_mib", peak_mib());  // of the process: a card's memory is not in it
  observer.row(row);
}

}  // namespace mhla::apps
