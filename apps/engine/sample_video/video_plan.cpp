#include "apps/engine/sample_video/video_plan.h"

#include <cmath>
#include <iomanip>
#include <sstream>

#include "mhla/core/limits.h"
#include "mhla/diffusion/generation_config.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_object.h"
#include "mhla/io/utf8.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostFrames = std::int64_t{1} << 16;
constexpr double kWanShift = 5.0;  // of the original command

std::string sides_text(const std::array<std::int64_t, 2>& size) { return str(size[0], "x", size[1]); }

std::string full_path(const fs::path& path) { return fs::absolute(path).lexically_normal().string(); }

// ---- Which model

WanConfig network_in(const fs::path& folder) {
  const fs::path file = folder / "config.json";
  const JsonValue json = read_json_object(file);
  const auto text = [&](const char* key) {
    const JsonValue* value = json.find(key);
    return value != nullptr && value->is_string() ? value->as_string() : std::string();
  };
  const std::string known = text("_class_name"), family = text("family");
  if (known != "WanTransformer3DModel" && known != "WanModel" && family != "wan")
    fail(file.string(), ": is of ",
         !known.empty()    ? known
         : !family.empty() ? family
                           : "another model",
         ", expected a Wan transformer (WanTransformer3DModel, WanModel or one of `mhla convert`)");
  return parse_wan_config(json, file.string());
}

// What a training says of its model: pixels or latents, their size, the shift, the words of captions.
void take_video_training(VideoPlan& plan) {
  const fs::path& folder = plan.files.transformer;
  if (plan.network.vocab > 0) {
    plan.words = CaptionWords::read(folder);
    if (plan.words->rows() != plan.network.vocab)
      fail(folder.string(), ": ", kWordsFile, " has ", plan.words->rows() - 1, " words, expected ",
           plan.network.vocab - 1);
  }
  if (!is_there(folder / kGenerationFile)) return;
  const GenerationConfig g = read_generation_config(folder, {});
  if (!g.is_flow()) fail(folder.string(), ": ", kGenerationFile, " has process ", g.process, ", expected flow");
  plan.pixels = !g.is_latent(), plan.unshuffle = g.unshuffle;
  if (!plan.files.shift) plan.files.shift = g.shift;
  if (plan.files.vae.empty()) plan.files.vae = g.autoencoder;
  if (g.sample.size() == 3) plan.frames = g.sample[0], plan.size = {g.sample[1], g.sample[2]};
  if (plan.pixels && plan.network.channels != 3 * g.unshuffle * g.unshuffle)
    fail(folder.string(), ": the model has ", plan.network.channels, " channels, expected 3 colours of ", g.unshuffle,
         "x", g.unshuffle, " pixels");
}

void take_video_vae(const SampleVideoRequest& r, VideoPlan& plan) {
  const fs::path& vae = plan.files.vae;
  if (plan.pixels) {
    for (const auto& [given, option] : {std::pair(!r.vae.empty(), "--vae"), std::pair(r.tile, "--tile")})
      if (given) fail(kVideoCommand, ": ", option, " is given, but the model makes pixels, without an autoencoder");
    return;
  }
  if (vae.empty())
    fail(kVideoCommand, ": no autoencoder is beside the model, expected vae/, Wan2.1_VAE.safetensors or --vae PATH");
  const fs::path config = vae / "config.json";
  if (is_folder(vae)) plan.autoencoder = parse_wan_vae_config(read_json_object(config), config.string());
  if (plan.autoencoder.z_dim != plan.network.channels)
    fail(kVideoCommand, ": ", vae.string(), " has latents of ", plan.autoencoder.z_dim, " channels, expected the ",
         plan.network.channels, " of the transformer");
  if (plan.network.out_channels != plan.network.channels)
    fail(kVideoCommand, ": the transformer has ", plan.network.out_channels, " channels out, expected the ",
         plan.network.channels, " that go in");
}

void take_video_encoder(const SampleVideoRequest& r, VideoPlan& plan) {
  const fs::path& encoder = plan.files.text_encoder;
  if (plan.words) {
    for (const auto& [given, option] :
         {std::pair(&r.text_encoder, "--text-encoder"), std::pair(&r.text_cache, "--text-cache")})
      if (!given->empty()) fail(kVideoCommand, ": ", option, " is given, but the model has words of its own");
    return;
  }
  if (encoder.empty()) return;
  const fs::path folder = is_folder(encoder) ? encoder : encoder.parent_path();
  plan.encoder = Umt5Config();
  if (is_folder(encoder)) plan.encoder = read_umt5_config(folder / "config.json");
  if (plan.encoder->d_model != plan.network.text_dim)
    fail(kVideoCommand, ": ", encoder.string(), " has states of ", plan.encoder->d_model, " channels, expected the ",
         plan.network.text_dim, " of the transformer");
}

// ---- Which videos

// The two numbers around `value` that are `rest` more than a multiple of `step`.
std::string nearest_two(std::int64_t value, std::int64_t step, std::int64_t rest = 0) {
  const std::int64_t below = (value - rest) / step * step + rest;
  const bool possible = below > 0 && value >= rest;
  return str(possible ? str(below, " or ") : std::string(), possible ? below + step : std::max(rest, step));
}

void take_video_size(const SampleVideoRequest& r, VideoPlan& plan) {
  const std::int64_t each = plan.time_factor(), side = plan.space_factor();
  if (r.size) plan.size = *r.size;
  if (r.frames) plan.frames = *r.frames;
  const std::int64_t frames = plan.frames;
  if (frames < 1 || frames > kMostFrames)
    fail(kVideoCommand, ": --frames is ", frames, ", expected 1 to ", kMostFrames);
  const std::int64_t time_patch = plan.network.patch[0];
  if ((frames - 1) % each != 0)
    fail(kVideoCommand, ": --frames is ", frames, ", expected one and a multiple of ", each, ": ",
         nearest_two(frames, each, 1));
  plan.latent = {plan.network.channels, 1 + (frames - 1) / each, plan.size[0] / side, plan.size[1] / side};
  if (plan.latent[1] % time_patch != 0)
    fail(kVideoCommand, ": --frames is ", frames, ", which is ", plan.latent[1], " latents, expected a multiple of ",
         time_patch, ", the patch of the transformer");
  for (std::size_t axis = 0; axis < 2; ++axis) {
    const std::int64_t step = side * plan.network.patch[axis + 1];
    expect_within(kVideoCommand, "--size", plan.size[axis], limits::kImage);
    if (plan.size[axis] % step != 0)
      fail(kVideoCommand, ": --size is ", sides_text(plan.size), ", expected multiples of ", step, " (", side,
           " pixels of a latent times patch ", plan.network.patch[axis + 1], "): ", nearest_two(plan.size[axis], step),
           " instead of ", plan.size[axis]);
  }
}

fs::path numbered(const fs::path& out, std::size_t number, std::size_t count) {
  if (count == 1) return out;
  std::ostringstream name;
  name << out.stem().string() << "-" << std::setfill('0') << std::setw(4) << number << out.extension().string();
  return out.parent_path() / name.str();
}

void take_video_prompts(const SampleVideoRequest& r, VideoPlan& plan) {
  if (r.prompts.empty()) fail(kVideoCommand, ": no prompt is given, expected --prompt TEXT or --prompts FILE");
  const bool together = r.prompts.size() > 1;
  for (const auto& [given, option] : {std::pair(!r.save_latents.empty(), "--save-latents"),
                                      std::pair(!r.resume.empty(), "--resume"), std::pair(!r.noise.empty(), "--noise")})
    if (together && given)
      fail(kVideoCommand, ": ", option, " is given with ", r.prompts.size(), " prompts, expected one prompt");
  for (std::size_t i = 0; i < r.prompts.size(); ++i) {
    VideoPrompt one;
    one.text = r.prompts[i];
    one.negative = i < r.negatives.size() ? r.negatives[i].value_or(r.negative) : r.negative;
    one.seed = i < r.seeds.size() && r.seeds[i] ? static_cast<std::uint64_t>(*r.seeds[i]) : r.seed + i;
    one.out = numbered(r.out, i, r.prompts.size());
    for (const std::string* text : {&one.text, &one.negative})
      if (!is_utf8(*text) || text->find('\0') != std::string::npos)
        fail(kVideoCommand, ": prompt ", i, " is not UTF-8 text");
    if (!one.negative.empty() && !plan.guided())
      fail(kVideoCommand, ": a negative prompt is given, but --guidance is ", plan.guidance, ", expected more than 1");
    plan.prompts.push_back(std::move(one));
  }
}

// ---- How

void take_video_sampler(const SampleVideoRequest& r, VideoPlan& plan) {
  if (!std::isfinite(r.guidance) || r.guidance < 0.0)
    fail(kVideoCommand, ": --guidance is ", r.guidance, ", expected 0 or more");
  plan.guidance = r.guidance;
  plan.sampler.sampler = r.sampler, plan.sampler.steps = r.steps, plan.sampler.time_grid = r.time_grid;
  plan.flow.shift = r.shift.value_or(plan.files.shift.value_or(kWanShift));
  check(plan.flow);
  (void)make_sampler(plan.flow, plan.sampler);
}

JsonValue video_settings(const SampleVideoRequest& r, const VideoPlan& plan) {
  JsonValue s = JsonValue::object();
  s.set("model", full_path(plan.files.weights)).set("attention", plan.network.attention);
  if (!plan.pixels) s.set("vae", full_path(plan.files.vae));
  s.set("size", sides_text(plan.size)).set("frames", plan.frames).set("fps", r.fps);
  s.set("sampler", plan.sampler.sampler).set("steps", plan.sampler.steps).set("shift", plan.flow.shift);
  if (!plan.sampler.time_grid.empty()) s.set("time_grid", plan.sampler.time_grid);
  s.set("guidance", plan.guidance).set("precision", plan.precision);
  if (!r.noise.empty()) s.set("noise", full_path(r.noise));
  return s;
}

}  // namespace

JsonValue VideoPlan::settings_of(const VideoPrompt& prompt) const {
  JsonValue s = JsonValue::object();
  s.set("prompt", prompt.text);
  if (guided()) s.set("negative", prompt.negative);
  s.set("seed", std::to_string(prompt.seed));
  for (const JsonValue::Member& member : settings.members()) s.set(member.key, member.value);
  return s;
}

VideoSettings VideoPlan::video(const SampleVideoRequest& r, const VideoPrompt& prompt) const {
  VideoSettings video;
  video.height = static_cast<int>(size[0]), video.width = static_cast<int>(size[1]);
  video.frames = frames, video.fps = r.fps;
  video.text = {{"Software", "mhla " MHLA_VERSION}};
  const JsonValue all = settings_of(prompt);
  for (const JsonValue::Member& member : all.members()) {
    std::string text = member.value.is_string() ? member.value.as_string() : write_json(member.value);
    // A video may travel: of a path only the last folder and the file.
    if (member.key == "model" || member.key == "vae" || member.key == "noise")
      text = (fs::path(text).parent_path().filename() / fs::path(text).filename()).string();
    video.text.emplace_back(member.key, text);
  }
  return video;
}

VideoPlan plan_video(const SampleVideoRequest& r) {
  VideoPlan plan;
  if (r.model.empty()) fail(kVideoCommand, ": --model is not given, expected the folder of a model");
  if (r.out.empty()) fail(kVideoCommand, ": --out is not given, expected a file such as clip.mp4");
  if (!r.device.empty()) plan.device = r.device;
  train::expect_precision(kVideoCommand, r.precision, train::device_of(plan.device));
  plan.precision = !r.precision.empty() ? r.precision : plan.device == "cpu" ? "f32" : "bf16";
  plan.files = find_video_files(r);
  plan.network = network_in(plan.files.transformer);
  take_video_training(plan);
  take_video_vae(r, plan);
  take_video_encoder(r, plan);
  take_video_size(r, plan);
  take_video_sampler(r, plan);
  take_video_prompts(r, plan);
  plan.settings = video_settings(r, plan);
  for (const VideoPrompt& prompt : plan.prompts) {
    check_video_output(prompt.out, plan.video(r, prompt), kVideoCommand);
    if (plan.prompts.size() == 1 && is_there(prompt.out) && !r.overwrite)
      fail(kVideoCommand, ": ", prompt.out.string(), " is there already, expected --overwrite or another --out");
  }
  return plan;
}

}  // namespace mhla::apps
