// One Wan transformer, one pass: a forward without gradients as `sample video` does it, with weights in bf16 where that
// is the precision and as a CUDA graph on a GPU, or a whole training step. Attention "hybrid" is MHLA in two layers of
// three, as published.
#include "apps/engine/bench_video.h"

#include <cmath>

#include "apps/engine/bench_model.h"
#include "mhla/core/error.h"
#include "mhla/diffusion/graph_denoiser.h"
#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/models/wan/wan.h"
#include "mhla/modules/unfilled.h"
#include "mhla/train/adamw.h"
#include "mhla/train/gradients.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"
#include "mhla/train/video/video_task.h"

#ifdef MHLA_TORCH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace mhla::apps {
namespace {

using namespace mhla::train;

constexpr const char* kHybrid = "hybrid";
constexpr std::int64_t kFrameStride = 4, kPixelStride = 8;  // of the Wan VAE

WanConfig video_network(const BenchModelRequest& bench) {
  const bool hybrid = bench.attention == kHybrid;
  WanConfig c = wan_config(bench.model, hybrid ? "mhla" : bench.attention);
  if (hybrid) c.layers = wan_layers("every-3rd-kept", c.depth, "bench model: attention");
  check(c);
  return c;
}

void expect_frames(std::int64_t frames, const std::string& model) {
  if ((frames - 1) % kFrameStride != 0)
    fail("bench model: --frames is ", frames, ", expected 4 n + 1 for the VAE of ", model, ": ",
         (frames + 1) / kFrameStride * kFrameStride + 1, " is the nearest");
}

// Frames, rows and columns of what the network sees of a video.
VideoGrid places_of(const BenchVideoRequest& r, const WanConfig& c) {
  const bool latents = c.vocab == 0;
  if (latents) expect_frames(r.frames, c.model);
  const std::int64_t stride = latents ? kPixelStride : 2;
  for (const auto& [side, patch] : {std::pair(r.rows, c.patch[1]), std::pair(r.columns, c.patch[2])})
    if (side < stride * patch || side % (stride * patch) != 0)
      fail("bench model: --size has a side of ", side, ", expected multiples of ", stride * patch, ": ",
           std::max<std::int64_t>(1, (side + stride * patch / 2) / (stride * patch)) * stride * patch,
           " is the nearest");
  return {latents ? (r.frames - 1) / kFrameStride + 1 : r.frames, r.rows / stride, r.columns / stride};
}

// Random weights made on the device: those of 14B would take minutes on the CPU. Mixing matrices start as in training.
template <class Network, class Config>
Network random_network(const Config& config, const torch::Device& device, torch::ScalarType type) {
  Network model = [&] {
    const UnfilledWeights unfilled;
    return Network(config);
  }();
  const torch::NoGradGuard no_gradient;
  for (auto& item : model->named_parameters()) {
    torch::Tensor& value = item.value();
    const auto options = torch::TensorOptions(type).device(device);
    if (item.key().ends_with("mix"))
      value.set_data(value.to(device, type));
    else if (value.dim() == 1)
      value.set_data(!item.key().ends_with("bias") ? torch::ones(value.sizes(), options)
                                                   : torch::zeros(value.sizes(), options));
    else
      value.set_data(torch::randn(value.sizes(), options) /
                     std::sqrt(static_cast<double>(value.numel() / value.size(0))));
  }
  return model;
}

void forget_device_peak([[maybe_unused]] const torch::Device& device) {
  forget_peak();
#ifdef MHLA_TORCH_CUDA
  if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
}

// MiB, of the card where the model is there; 0: not known.
double device_peak_mib(const torch::Device& device) {
#ifdef MHLA_TORCH_CUDA
  if (device.is_cuda())
    return static_cast<double>(
               c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak) /
           1048576.0;
#endif
  return device.is_cuda() ? 0.0 : peak_mib();
}

// Latents to frames as `sample video` does it, one latent after the other. "Attention" is how frames lie.
void bench_decoder(const BenchVideoRequest& r, Observer& observer) {
  const TrainOptions options = options_of(r.bench);
  const std::string& how = r.bench.attention;
  if (r.bench.pass != "decode") fail("bench model: --pass is ", r.bench.pass, " for wan_vae, expected decode");
  if (how != "plain" && how != "conv3d" && how != "conv2d")
    fail("bench model: --attention is ", how, " for wan_vae, expected plain, conv3d or conv2d");
  expect_frames(r.frames, "wan_vae");
  const WanVaeConfig c;
  for (const std::int64_t side : {r.rows, r.columns})
    if (side < kPixelStride || side % kPixelStride != 0)
      fail("bench model: --size has a side of ", side, ", expected multiples of ", kPixelStride);
  prepare(options, observer);
  const torch::Device device = device_of(options.device);
  const torch::ScalarType type = options.precision == "bf16" ? torch::kBFloat16 : torch::kFloat;
  WanVae model = random_network<WanVae>(c, device, type);
  model->use_frames(how == "plain"    ? WanVaeFrames::kPlain
                    : how == "conv3d" ? WanVaeFrames::kRows
                                      : WanVaeFrames::kImages);
  const torch::NoGradGuard no_gradient;
  const torch::Tensor latents =
      torch::randn({1, c.z_dim, (r.frames - 1) / kFrameStride + 1, r.rows / kPixelStride, r.columns / kPixelStride})
          .to(device, type);
  forget_device_peak(device);
  const Measured measured =
      measure(r.bench, device, [&] { model->decode_each(latents, [](const torch::Tensor& /*frames*/) {}); });
  JsonValue row = JsonValue()
                      .set("model", "wan_vae")
                      .set("attention", how)
                      .set("frames", r.frames)
                      .set("rows", r.rows)
                      .set("columns", r.columns)
                      .set("tokens", latents.numel() / c.z_dim)
                      .set("batch", 1)
                      .set("pass", r.bench.pass)
                      .set("device", options.device)
                      .set("precision", options.precision)
                      .set("videos_per_s", 1e3 / measured.ms);
  measured.add_to(row);
  if (const double peak = device_peak_mib(device); peak > 0) row.set("peak_mib", peak);
  observer.row(row);
}

}  // namespace

void bench_video(const BenchVideoRequest& request, Observer& observer) {
  if (request.bench.model == "wan_vae") return bench_decoder(request, observer);
  const TrainOptions options = options_of(request.bench);
  const std::string& pass = request.bench.pass;
  if (pass == "decode") fail("bench model: --pass is decode for ", request.bench.model, ", expected fwd or train");
  const WanConfig c = video_network(request.bench);
  const VideoGrid places = places_of(request, c);
  prepare(options, observer);
  const torch::Device device = device_of(options.device);
  const ModelSize size = size_of(c, places);
  if (pass == "train") expect_training_fits("bench model", size, options);
  expect_inference_fits("bench model", size, options.batch, options);
  const bool narrow = pass == "fwd" && options.precision == "bf16";
  Wan model = random_network<Wan>(c, device, narrow ? torch::kBFloat16 : torch::kFloat);
  const std::int64_t B = options.batch;
  const torch::Tensor x = torch::randn({B, c.channels, places[0], places[1], places[2]}).to(device);
  const torch::Tensor noise = torch::randn_like(x), t = torch::full({B}, 500.0F).to(device);
  const torch::Tensor text = c.vocab != 0 ? torch::randint(1, c.vocab, {B, c.text_tokens}, torch::kLong).to(device)
                                          : torch::randn({B, c.text_tokens, c.text_dim}).to(device);
  const torch::Tensor seen = narrow ? x.to(torch::kBFloat16) : x;
  forget_device_peak(device);
  Measured measured;
  if (pass == "fwd") {
    const torch::NoGradGuard no_gradient;
    model->eval();
    GraphDenoiser network(*model);
    measured = measure(request.bench, device, [&] { (void)network.denoise(seen, t, {{}, text, {}}); });
  } else {
    AdamW optimizer(param_groups(*model, options), {});
    measured = measure(request.bench, device, [&] {
      torch::Tensor loss;
      {
        const Autocast autocast(options, device);
        loss = FlowMatching::loss(model->forward(x, t, text), x, noise).mean();
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
  const std::int64_t tokens = places[0] / c.patch[0] * (places[1] / c.patch[1]) * (places[2] / c.patch[2]);
  const double peak = device_peak_mib(device);
  JsonValue row = JsonValue()
                      .set("model", c.model)
                      .set("attention", request.bench.attention)
                      .set("frames", request.frames)
                      .set("rows", request.rows)
                      .set("columns", request.columns)
                      .set("tokens", tokens)
                      .set("M", c.attention == "mhla" ? c.blocks[0] * c.blocks[1] * c.blocks[2] : 1)
                      .set("batch", B)
                      .set("pass", pass)
                      .set("device", options.device)
                      .set("precision", options.precision)
                      .set("threads", ops::num_threads())
                      .set("parameters", parameters)
                      .set("videos_per_s", 1e3 * static_cast<double>(B) / measured.ms);
  measured.add_to(row);
  if (peak > 0) row.set("peak_mib", peak);
  observer.row(row);
}

}  // namespace mhla::apps
