#include "mhla/models/autoencoder/wan_vae_recorded.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/models/autoencoder/wan_vae.h"

namespace mhla {
namespace {

// The keys that say what ran, not what the model is.
const std::vector<std::string> kVaeRunKeys{"family", "names", "param_case", "tile", "tile_stride", "note"};

WanVae wan_vae_of(const RecordedCase& c) {
  JsonValue config = JsonValue::object();
  for (const JsonValue::Member& m : c.config.members()) {
    if (std::find(kVaeRunKeys.begin(), kVaeRunKeys.end(), m.key) == kVaeRunKeys.end()) config.set(m.key, m.value);
  }
  WanVae model(parse_wan_vae_config(config, "metadata"));
  const Weights published = c.weights("param.");
  if (published.empty()) fail("no parameters are there");
  model->to(published.begin()->second.device(), published.begin()->second.scalar_type());
  load_published(*model, published);
  return model;
}

WanVaeTiles tiles_of(const RecordedCase& c) {
  WanVaeTiles tiles;
  if (c.config.contains("tile")) fields::from_json(c.config.at("tile"), tiles.size);
  if (c.config.contains("tile_stride")) fields::from_json(c.config.at("tile_stride"), tiles.stride);
  return tiles;
}

Weights recorded_video(const RecordedCase& c) {
  const bool diffusers = c.text("names") == "diffusers";
  if (!diffusers) c.expect_text("names", "original");
  WanVae model = wan_vae_of(c);
  Weights results;
  torch::Tensor loss = torch::zeros({}, torch::kDouble), video, latents;
  const auto judged = [&](const std::string& name, const torch::Tensor& value) {
    results["out." + name] = value;
    if (c.has("dout." + name)) loss = loss + (value * c.tensor("dout." + name)).sum();
  };
  const auto clamped = [&](const torch::Tensor& x) { return diffusers ? x.clamp(-1, 1) : x; };
  if (c.has("in.video")) {
    video = c.leaf("in.video");
    const WanVaeImpl::Moments m = model->moments(video);
    if (diffusers) judged("mean", m.mean), judged("logvar", m.logvar);
    judged("latents", model->normalized(m.mean));
  }
  if (c.has("in.latents")) judged("video", clamped(model->decode(latents = c.leaf("in.latents"))));
  if (c.has("in.odd_frames")) judged("odd_mean", model->moments(c.tensor("in.odd_frames"), /*drop_rest=*/true).mean);
  if (c.has("in.image")) judged("image_mean", model->moments(c.tensor("in.image")).mean);
  if (c.has("in.z")) {
    judged("decode", clamped(model->decode_raw(c.tensor("in.z"))));
    judged("decode_tiled", clamped(model->decode_raw_tiled(c.tensor("in.z"), tiles_of(c))));
  }
  if (c.has("in.big")) judged("encode_tiled", model->mean_tiled(c.tensor("in.big"), tiles_of(c)));
  if (!loss.requires_grad()) return results;
  loss.backward();
  if (video.defined()) results["grad.in.video"] = video.grad();
  if (latents.defined()) results["grad.in.latents"] = latents.grad();
  if (!diffusers) {
    for (const auto& [name, value] : to_published(*model, gradients_of(*model), WanVaeNames::kOriginal))
      results["grad.param." + name] = value;
  }
  return results;
}

}  // namespace

RecordedFamilies wan_vae_recorded() { return {{"wan_vae", recorded_video}}; }

}  // namespace mhla
