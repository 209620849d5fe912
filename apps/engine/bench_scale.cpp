// A step as the trainer makes it, on inputs that are made once: forward and backward of this process's part of the
// batch, gradients summed meanwhile, norms, AdamW, constraint, average, and the few numbers that ranks agree on.
#include "apps/engine/bench_scale.h"

#include <functional>

#include "apps/engine/bench_operator.h"
#include "apps/engine/sent_bytes.h"
#include "apps/engine/timed.h"
#include "apps/engine/training.h"
#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/models/classify/classifier.h"
#include "mhla/models/lm/head_loss.h"
#include "mhla/models/lm/lm.h"
#include "mhla/train/adamw.h"
#include "mhla/train/distributed/gradient_sum.h"
#include "mhla/train/distributed/traffic.h"
#include "mhla/train/ema.h"
#include "mhla/train/gradients.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"

namespace mhla::apps {
namespace {

using namespace mhla::train;
using Clock = std::chrono::steady_clock;

// A model with inputs of one microbatch.
struct Stepped {
  std::shared_ptr<torch::nn::Module> module;
  const char* samples;                  // what they are: "images", "tokens"
  std::int64_t each = 0;                // of a microbatch
  std::function<torch::Tensor()> loss;  // summed over the samples
  std::function<void()> constrain;
};

Stepped stepped_lm(const BenchScaleRequest& request, const TrainOptions& options, const torch::Device& device) {
  LmConfig config = lm_config(request.model, "mhla");
  config.context = std::max(config.context, request.length);
  check(config);
  expect_training_fits("bench scale", size_of(config, request.length, false, /*alone=*/true), options);
  const std::shared_ptr<LanguageModelImpl> model = LanguageModel(config).ptr();
  model->to(device);
  const std::int64_t rows = share_of(options).each;
  const torch::Tensor tokens = torch::randint(config.vocab, {rows, request.length}, torch::kLong).to(device);
  const torch::Tensor targets = tokens.roll(-1, 1);
  return {model, "tokens", tokens.numel(), [=] { return head_loss(model->hidden(tokens), model->head(), targets); },
          [=] { model->constrain(); }};
}

Stepped stepped_classifier(const BenchScaleRequest& request, const TrainOptions& options, const torch::Device& device) {
  const ClassifierConfig config = classifier_config(request.model, "mhla");
  check(config);
  expect_training_fits("bench scale", size_of(config), options);
  const AnyClassifier model = make_classifier(config);
  model->to(device);
  const std::int64_t rows = share_of(options).each;
  const torch::Tensor images = torch::randn({rows, config.channels, config.image[0], config.image[1]}).to(device);
  const torch::Tensor labels = torch::randint(config.classes, {rows}, torch::kLong).to(device);
  const auto how = torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum);
  return {model, "images", rows,
          [=] { return torch::nn::functional::cross_entropy(model->forward(images), labels, how); },
          [=] { model->constrain(); }};
}

std::int64_t bytes_in(const NamedTensors& tensors, const PrefixedRows& rows) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  for (const auto& [prefix, row] : rows) bytes += row->mine.nbytes();
  return static_cast<std::int64_t>(bytes);
}

class Stepper {
 public:
  Stepper(const Stepped& what, const TrainOptions& options, const torch::Device& device)
      : what_(what),
        options_(options),
        device_(device),
        share_(share_of(options)),
        team_(options.place.maybe_team),
        optimizer_(param_groups(*what.module, options), {}, keepers_of(options)) {
    what.module->train();
    if (options.ema > 0) ema_.emplace(*what.module, options.ema, keepers_of(options));
    std::vector<std::string> names;
    std::vector<torch::Tensor> params, buffers;
    for (const auto& item : what.module->named_parameters())
      if (item.value().requires_grad()) names.push_back(item.key()), params.push_back(item.value());
    for (const auto& item : what.module->named_buffers()) buffers.push_back(item.value());
    for (const torch::Tensor& param : params) numbers_ += param.numel();
    if (share_.parts > 1)
      sum_.emplace(team_, names, params, buffers,
                   distributed::GradientSumOptions{.leaves = share_.count, .fixed_tree = options.deterministic_reduce});
  }

  void step() {
    if (sum_) sum_->begin(options_.accumulate);
    for (std::int64_t pass = 0; pass < options_.accumulate * share_.count; ++pass) {
      if (sum_) sum_->before_microbatch();
      torch::Tensor loss;
      {
        const Autocast autocast(options_, device_);
        loss = what_.loss();
      }
      loss.backward();
      if (sum_) sum_->after_microbatch();
    }
    const auto computed = Clock::now();
    if (sum_) sum_->finish(), sum_->forget_own();
    waited_s_ += seconds_since(computed);
    if (team_ != nullptr) team_->gather(std::vector<double>(8, 0.0), "the numbers of a step");
    const GradientNorms norms = gradient_norms(optimizer_.groups(), true);
    const auto samples = static_cast<double>(what_.each * share_.parts * options_.accumulate);
    optimizer_.step(1e-4, gradient_scales(norms, samples, options_.clip_norm));
    optimizer_.zero_grad();
    {
      const torch::NoGradGuard no_gradient;
      what_.constrain();
    }
    if (ema_) ema_->update(++steps_);
  }

  [[nodiscard]] std::int64_t state_bytes() const {
    return bytes_in(optimizer_.state(), optimizer_.rows()) + (ema_ ? bytes_in(ema_->state(), ema_->rows()) : 0);
  }
  [[nodiscard]] double numbers() const { return static_cast<double>(numbers_); }  // of all gradients
  double take_waited_s() { return std::exchange(waited_s_, 0.0); }                // for gradients, after backward

 private:
  const Stepped& what_;
  const TrainOptions& options_;
  const torch::Device device_;
  const Share share_;
  distributed::Team* const team_;
  AdamW optimizer_;
  std::optional<Ema> ema_;
  std::optional<distributed::GradientSum> sum_;
  std::int64_t numbers_ = 0, steps_ = 0;
  double waited_s_ = 0;
};

double largest(const std::vector<std::vector<double>>& all, std::size_t index) {
  double most = 0;
  for (const std::vector<double>& one : all) most = std::max(most, one[index]);
  return most;
}

void measure_scale(const BenchScaleRequest& request, const TrainOptions& options, Observer& observer) {
  prepare(options, observer);
  const torch::Device device = device_of(options.device);
  const std::vector<std::string> known = lm_names();
  const bool language = std::find(known.begin(), known.end(), request.model) != known.end();
  const Stepped what = language ? stepped_lm(request, options, device) : stepped_classifier(request, options, device);
  Stepper stepper(what, options, device);
  distributed::Team* const team = options.place.maybe_team;
  for (int i = 0; i < 2; ++i) stepper.step();
  forget_peak();
  stepper.take_waited_s();
  std::vector<double> each_ms;  // as many on every rank
  const std::optional<std::int64_t> sent = tcp_bytes_of(team, [&] {
    for (std::int64_t i = 0; i < request.steps; ++i)
      each_ms.push_back(milliseconds_of(device, [&] { stepper.step(); }));
  });
  const Timed timed = timed_of(each_ms);
  const auto steps = static_cast<double>(timed.runs);
  std::vector<double> mine{sent ? static_cast<double>(*sent) / steps : -1.0, peak_mib(),
                           static_cast<double>(stepper.state_bytes()), 1e3 * stepper.take_waited_s() / steps};
  const std::vector<std::vector<double>> all =
      team == nullptr ? std::vector<std::vector<double>>{mine} : team->gather(mine, "what was measured");
  const auto samples = static_cast<double>(what.each * share_of(options).parts * options.accumulate);
  JsonValue row = JsonValue()
                      .set("what", "step")  // of training
                      .set("model", request.model)
                      .set("ranks", options.place.ranks)
                      .set("threads", ops::num_threads())
                      .set("batch", options.batch)
                      .set("accumulate", options.accumulate)
                      .set("device", options.device)
                      .set("deterministic_reduce", options.deterministic_reduce)
                      .set("shard_optimizer", options.shard_optimizer)
                      .set("ema", options.ema > 0)
                      .set("parameters", stepper.numbers())
                      .set("ms", timed.ms)
                      .set("spread", timed.spread)
                      .set("waited_ms", largest(all, 3))
                      .set("samples", what.samples)
                      .set("samples_per_s", 1e3 * samples / timed.ms)
                      .set("sent_formula", options.place.ranks == 1
                                               ? 0.0
                                               : distributed::step_bytes(stepper.numbers(), options.place.ranks,
                                                                         options.shard_optimizer));
  if (mine[0] >= 0) row.set("sent", largest(all, 0));
  row.set("state_bytes", largest(all, 2));
  if (!device.is_cuda()) row.set("peak_mib", largest(all, 1));
  observer.row(row);
}

}  // namespace

void bench_scale(const BenchScaleRequest& request, Observer& observer) {
  TrainOptions options;
  options.batch = request.batch, options.accumulate = request.accumulate, options.threads = request.threads,
  options.device = request.device;
  options.precision = request.precision, options.timeout = 120;
  options.deterministic_reduce = request.deterministic_reduce, options.shard_optimizer = request.shard_optimizer;
  options.ema = request.ema ? 0.999 : 0.0;
  if (!request.op.empty()) options.batch = distributed::world_from_environment().size;  // not used, and not refused
  in_team(options, observer, [&](Observer& heard) {
    request.op.empty() ? measure_scale(request, options, heard) : measure_operator(request, options, heard);
  });
}

}  // namespace mhla::apps
