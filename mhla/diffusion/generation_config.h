// How a trained network makes samples: generation.json beside its config.json. The network says what it computes; this
// says what its numbers mean: noise or velocity, on which schedule, of pixels or of latents. Plain values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "mhla/io/fields.h"

namespace mhla {

struct GaussianOptions;
struct FlowOptions;

inline constexpr const char* kGenerationFile = "generation.json";

struct GenerationConfig {
  std::string process = "noise";
  std::string schedule = "linear";
  std::int64_t train_steps = 1000;
  bool learned_variance = true;
  double shift = 1.0;
  std::string space = "pixels";
  std::int64_t unshuffle = 1;
  std::string autoencoder;
  double latent_scale = 0.0;
  double latent_shift = 0.0;
  std::vector<std::int64_t> sample;
  std::string text_encoder;

  template <class Self, class Visit>
  static void fields(Self& c, Visit&& visit) {
    visit("process", c.process, "noise: the network predicts the noise; flow: the velocity, noise minus sample");
    visit("schedule", c.schedule, "noise schedule: linear or squaredcos_cap_v2 (process noise)");
    visit("train_steps", c.train_steps, "steps of the process that the model was trained on");
    visit("learned_variance", c.learned_variance, "whether the model predicts the variance too (process noise)");
    visit("shift", c.shift, "shift of the times towards noise; 1 for none (process flow)");
    visit("space", c.space, "what the network generates: pixels from -1 to 1, or latents of an autoencoder");
    visit("unshuffle", c.unshuffle,
          "pixels: squares of this side are the channels of one place, colour by colour, row by row; 1: none");
    visit("autoencoder", c.autoencoder, "folder of the autoencoder that decodes latents; empty: not known");
    visit("latent_scale", c.latent_scale, "latents are multiplied by this before training; 0: the autoencoder's own");
    visit("latent_shift", c.latent_shift, "subtracted from latents before that; 0: the autoencoder's own");
    visit("sample", c.sample,
          "rows and columns of a sample in training, of videos frames before them; empty: the network says, or not "
          "known");
    visit("text_encoder", c.text_encoder, "folder of the text encoder that prompts go through; empty: not known");
  }
  bool operator==(const GenerationConfig&) const = default;

  [[nodiscard]] bool is_flow() const { return process == "flow"; }
  [[nodiscard]] bool is_latent() const { return space == "latents"; }
};

// Throws with the field, its value and what was expected.
void check(const GenerationConfig& config);
// For a network whose samples have `channels` channels: learned_variance must be its learn_sigma.
void check(const GenerationConfig& config, std::int64_t channels, bool learn_sigma);

// What a folder without the file holds, as published: DiT predicts noise on the linear schedule, 1 or 3 channels are
// pixels, others latents; SANA predicts velocities of latents, shifted by 3.
GenerationConfig dit_generation(std::int64_t channels, bool learn_sigma);
GenerationConfig sana_generation();
// The same with what diffusers publishes beside the weights: `sample_size` of the config.json, and the shift of
// scheduler/scheduler_config.json in the folder of the pipeline, which need not be there.
GenerationConfig sana_generation(const std::filesystem::path& config, const std::filesystem::path& pipeline);

// A key that is unknown is refused with the nearest known one; missing keys keep their defaults.
GenerationConfig parse_generation_config(const JsonValue& object, const std::string& label);
// generation.json of a folder, or `otherwise` where there is none.
GenerationConfig read_generation_config(const std::filesystem::path& folder, const GenerationConfig& otherwise);
void write_generation_config(const std::filesystem::path& folder, const GenerationConfig& config);

// The process that the network was trained on: of the two the one that `process` names.
GaussianOptions gaussian_options(const GenerationConfig& config);
FlowOptions flow_options(const GenerationConfig& config);

}  // namespace mhla
