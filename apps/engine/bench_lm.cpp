// One language model, one pass. Training is what the trainer does: forward, chunked loss, backward, norm, AdamW,
// constraint. Decoding is one token of every sequence; its roof is the time in which the machine copies as many bytes
// as the weights have, once for the whole batch, and the states that are read.
#include "apps/engine/bench_lm.h"

#include "apps/engine/bench_model.h"
#include "mhla/core/error.h"
#include "mhla/models/lm/decoder.h"
#include "mhla/models/lm/head_loss.h"
#include "mhla/models/lm/lm.h"
#include "mhla/modules/zoo/zoo.h"
#include "mhla/train/adamw.h"
#include "mhla/train/gradients.h"
#include "mhla/train/machine_rate.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"

namespace mhla::apps {
namespace {

using namespace mhla::train;

std::int64_t bytes_of(const torch::nn::Module& module) {
  std::int64_t bytes = 0;
  for (const torch::Tensor& parameter : module.parameters()) bytes += static_cast<std::int64_t>(parameter.nbytes());
  return bytes;
}

Measured time_training(LanguageModel& model, const BenchModelRequest& bench, const TrainOptions& options,
                       const torch::Tensor& tokens) {
  model->train();
  AdamW optimizer(param_groups(*model, options), {});
  const torch::Tensor targets = tokens.roll(-1, 1);
  const torch::Device device = tokens.device();
  return measure(bench, device, [&] {
    torch::Tensor loss;
    {
      const Autocast autocast(options, device);
      loss = head_loss(model->hidden(tokens), model->head(), targets) / static_cast<double>(tokens.numel());
    }
    loss.backward();
    const GradientNorms norms = gradient_norms(optimizer.groups(), options.clip_mix_apart.value_or(true));
    optimizer.step(1e-4, gradient_scales(norms, 1.0, options.clip_norm));
    optimizer.zero_grad();
    model->constrain();
  });
}

}  // namespace

void bench_lm(const BenchLmRequest& request, Observer& observer) {
  const TrainOptions options = options_of(request.bench);
  const std::string &attention = request.bench.attention, &pass = request.bench.pass;
  const std::int64_t length = request.length;
  LmConfig config = lm_config(request.bench.model, attention);
  config.context = std::max(config.context, length);
  if (request.chunk > 0) config.chunk = request.chunk;
  check(config);
  prepare(options, observer);
  const torch::Device device = device_of(options.device);
  const bool recompute = request.recompute, exact = request.exact;
  if (pass == "train") expect_training_fits("bench model", size_of(config, length, recompute, /*alone=*/true), options);
  if (pass == "decode")
    expect_inference_fits("bench model", size_of(config, 1), options.batch, options,
                          static_cast<double>(options.batch) * state_bytes(config, length), "states");
  if (pass == "fwd")
    expect_inference_fits("bench model", size_of(config, length, false, /*alone=*/true), options.batch, options);
  const bool bf16 = options.precision == "bf16";
  LanguageModel model(config);
  model->to(device);
  model->set_recompute(recompute);
  if (exact && (pass == "train" || bf16))
    fail("bench model: --exact with pass ", pass, " in ", options.precision, ", expected fwd or decode in f32");
  if (exact) model->set_exact(true);
  const torch::Tensor tokens = torch::randint(config.vocab, {options.batch, length}, torch::kLong).to(device);
  forget_peak();
  Measured measured;
  JsonValue row = JsonValue()
                      .set("model", config.model)
                      .set("attention", attention)
                      .set("length", length)
                      .set("chunk", config.chunk)
                      .set("batch", options.batch)
                      .set("pass", pass)
                      .set("device", options.device)
                      .set("precision", options.precision)
                      .set("exact", exact)
                      .set("threads", ops::num_threads())
                      .set("parameters", count_parameters(*model));
  std::int64_t of_a_run = options.batch * length;  // tokens
  double share = 0;                                // of the roof
  if (pass == "decode") {
    const torch::NoGradGuard no_gradient;
    model->eval();
    if (bf16) model->cast(torch::kBFloat16);
    model->set_length_policy(LengthPolicy::kExtend);
    LmState state = model->begin(options.batch);
    torch::Tensor next = model->prefill(tokens, state).argmax(-1);
    Decoder decoder(*model);
    measured = measure(request.bench, device, [&] { next = decoder.decode(next, state).argmax(-1); });
    of_a_run = options.batch;
    const double bytes = static_cast<double>(bytes_of(*model)), roof_ms = 1e3 * bytes / copy_rate(device);
    share = roof_ms / measured.ms;
    row.set("weight_mib", bytes / 1048576.0).set("state_mib", static_cast<double>(state.bytes()) / 1048576.0);
    row.set("roof_ms", roof_ms);
  } else {
    if (pass == "train") {
      measured = time_training(model, request.bench, options, tokens);
    } else {
      const torch::NoGradGuard no_gradient;
      model->eval();
      measured = measure(request.bench, device, [&] {
        const Autocast autocast(options, device);
        (void)token_losses(model->hidden(tokens), model->head(), tokens);
      });
    }
    const double work = (pass == "train" ? 3.0 : 1.0) * model->flops_per_token(length) * static_cast<double>(of_a_run);
    share = work / (1e-3 * measured.ms) / gemm_rate(device, bf16);
  }
  measured.add_to(row);
  row.set("tokens_per_s", 1e3 * static_cast<double>(of_a_run) / measured.ms).set("of_roof", share);
  if (!device.is_cuda()) row.set("peak_mib", peak_mib());  // of the process: a card's memory is not in it
  observer.row(row);
}

}  // namespace mhla::apps
