#include "apps/engine/sample_video/video_state.h"

#include "mhla/models/weights_file.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char *kStateSettings = "mhla.video", *kStateStep = "mhla.step", *kStateMemory = "sampler.";

std::vector<std::int64_t> latent_shape(const VideoPlan& plan) {
  return {1, plan.latent[0], plan.latent[1], plan.latent[2], plan.latent[3]};
}

void expect_same_video(const JsonValue& there, const JsonValue& now, const fs::path& path) {
  const auto text = [](const JsonValue* value) {
    return value == nullptr ? std::string("none") : value->is_string() ? value->as_string() : write_json(*value);
  };
  for (const JsonValue* one : {&now, &there})
    for (const JsonValue::Member& member : one->members()) {
      const JsonValue *old = there.find(member.key), *own = now.find(member.key);
      if (old != nullptr && own != nullptr && *old == *own) continue;
      fail(kVideoCommand, ": ", path.string(), " was begun with ", member.key, " ", text(old), ", now it is ",
           text(own), ": expected the same settings, or no --resume");
    }
}

}  // namespace

void write_video_state(const fs::path& path, const VideoState& state, const JsonValue& settings) {
  Weights tensors{{"latents", state.x.cpu()}, {"text", state.text.cpu()}};
  if (state.negative.defined()) tensors["negative"] = state.negative.cpu();
  for (const auto& [name, value] : state.memory) tensors[kStateMemory + name] = value.cpu();
  for (auto& [name, value] : tensors)
    value = (value.is_floating_point() ? value.to(torch::kFloat) : value).contiguous();
  write_weights(path, tensors, {{kStateSettings, write_json(settings)}, {kStateStep, std::to_string(state.step)}});
}

VideoState read_video_state(const fs::path& path, const VideoPlan& plan) {
  const Safetensors file = Safetensors::read(path);
  const auto settings = file.metadata().find(kStateSettings), step = file.metadata().find(kStateStep);
  if (settings == file.metadata().end() || step == file.metadata().end())
    fail(kVideoCommand, ": ", path.string(), " is no file of --save-latents");
  expect_same_video(parse_json(settings->second, kStateSettings), plan.settings_of(plan.prompts.front()), path);
  return labelled(path.string(), [&] {
    VideoState state;
    state.step = parse_json(step->second, kStateStep).as_int();
    for (const auto& [name, value] : weights_in(file)) {
      if (name == "latents") {
        state.x = value;
      } else if (name == "text") {
        state.text = value;
      } else if (name == "negative") {
        state.negative = value;
      } else if (name.rfind(kStateMemory, 0) == 0) {
        state.memory[name.substr(std::string(kStateMemory).size())] = value;
      } else {
        fail("'", name, "' is unknown");
      }
    }
    const auto expect = [](const torch::Tensor& x, const std::vector<std::int64_t>& shape, const std::string& name,
                           torch::ScalarType type = torch::kFloat) {
      if (!x.defined() || x.sizes() != torch::IntArrayRef(shape) || x.scalar_type() != type)
        fail("'", name, "' is ", x.defined() ? c10::str(x.sizes()) : "missing", ", expected ", c10::toString(type), " ",
             c10::str(torch::IntArrayRef(shape)));
    };
    const std::vector<std::int64_t> shape = latent_shape(plan);
    std::vector<std::int64_t> text{1, plan.network.text_tokens};
    if (!plan.words) text.push_back(plan.network.text_dim);
    const torch::ScalarType type = plan.words ? torch::kLong : torch::kFloat;
    expect(state.x, shape, "latents"), expect(state.text, text, "text", type);
    if (plan.guided()) expect(state.negative, text, "negative", type);
    for (const auto& [name, value] : state.memory) expect(value, shape, kStateMemory + name);
    if (state.step < 1 || state.step > plan.sampler.steps)
      fail(state.step, " steps are done, expected 1 to ", plan.sampler.steps);
    return state;
  });
}

torch::Tensor read_video_noise(const fs::path& path, const VideoPlan& plan) {
  const Weights all = read_weights(path);
  const std::vector<std::int64_t> shape = latent_shape(plan);
  const std::vector<std::int64_t> bare(shape.begin() + 1, shape.end());
  if (all.size() != 1) fail(kVideoCommand, ": ", path.string(), " has ", all.size(), " tensors, expected one");
  const torch::Tensor& noise = all.begin()->second;
  if (!noise.is_floating_point() ||
      (noise.sizes() != torch::IntArrayRef(shape) && noise.sizes() != torch::IntArrayRef(bare)))
    fail(kVideoCommand, ": ", path.string(), " has a tensor of ", c10::str(noise.sizes()), ", expected ",
         c10::str(torch::IntArrayRef(bare)));
  if (!noise.isfinite().all().item<bool>()) fail(kVideoCommand, ": ", path.string(), " has NaN or infinite numbers");
  return noise.to(torch::kFloat).view(shape);
}

}  // namespace mhla::apps
