#include "mhla/diffusion/video_recorded.h"

#include "mhla/core/error.h"
#include "mhla/diffusion/guidance.h"
#include "mhla/diffusion/sample.h"
#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/models/wan/wan.h"

namespace mhla {
namespace {

JsonValue pipeline_part(const RecordedCase& c, const char* key, const char* class_name) {
  if (!c.config.contains(key)) fail("metadata '", key, "' is missing");
  JsonValue part = c.config.at(key);
  if (!part.is_object()) fail("metadata '", key, "' is no object");
  return part.set("_class_name", class_name);
}

// The times are those of the grid that diffusers' UniPC has; the model is given what the case says.
void expect_times(const RecordedCase& c, const Sampler& sampler) {
  if (!c.config.contains("timesteps")) return;
  const JsonValue::Array& times = c.config.at("timesteps").items();
  bool same = static_cast<std::int64_t>(times.size()) == sampler.steps();
  for (std::size_t i = 0; same && i < times.size(); ++i) same = times[i].as_double() == sampler.times()[i];
  if (!same) fail("metadata 'timesteps' are not those of diffusers-unipc");
}

Weights wan_pipeline(const RecordedCase& c) {
  c.expect_keys({"names", "scheduler", "steps", "shift", "guidance", "frames", "height", "width", "transformer", "vae",
                 "sigmas", "timesteps"});
  c.expect_text("names", "diffusers"), c.expect_text("scheduler", "UniPCMultistepScheduler");
  const torch::Tensor& noise = c.tensor("in.noise");
  const torch::Device device = noise.device();
  Wan network(parse_wan_config(pipeline_part(c, "transformer", "WanTransformer3DModel"), "metadata 'transformer'"));
  WanVae vae(parse_wan_vae_config(pipeline_part(c, "vae", "AutoencoderKLWan"), "metadata 'vae'"));
  network->to(device, noise.scalar_type()), vae->to(device, noise.scalar_type());
  load_published(*network, c.weights("param.transformer.")), load_published(*vae, c.weights("param.vae."));

  FlowOptions flow;
  flow.shift = c.number("shift", 1.0);
  SamplerOptions how;
  how.sampler = "unipc", how.steps = c.integer("steps"), how.time_grid = "diffusers-unipc";
  const std::unique_ptr<Sampler> sampler = make_sampler(flow, how);
  expect_times(c, *sampler);
  GuidanceOptions guidance;
  guidance.scale = c.number("guidance", 1.0);
  GuidedDenoiser guided(*network.ptr(), guidance, {{}, c.tensor("in.negative"), {}});
  SampleRequest request;
  request.shape = noise.sizes().slice(1).vec(), request.start = noise, request.device = device;
  for (std::int64_t i = 0; i < noise.size(0); ++i) request.numbers.push_back(i);
  request.condition.captions = c.tensor("in.text");
  const torch::Tensor latents = sample(guided, *sampler, request);

  const torch::NoGradGuard no_gradient;
  const torch::Tensor video = vae->decode(latents.to(noise.scalar_type())).clamp(-1, 1);
  if (video.size(2) != c.integer("frames") || video.size(3) != c.integer("height") ||
      video.size(4) != c.integer("width"))
    fail("the video has shape ", c10::str(video.sizes()), ", expected the frames, height and width of the case");
  return {{"out.latents", latents}, {"out.video", ((video + 1) / 2).permute({0, 2, 3, 4, 1})}};
}

}  // namespace

RecordedFamilies video_recorded() { return {{"wan_pipeline", wan_pipeline}}; }

}  // namespace mhla
