// What `mhla sample video` asks the engine for (apps/engine/requests.h has the other requests).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mhla/io/fields.h"

namespace mhla::apps {

struct SampleVideoRequest {
  std::string model, weights, out, vae, text_encoder, text_cache, device, precision;
  std::vector<std::string> prompts;
  std::vector<std::optional<std::string>> negatives;  // of each prompt; fewer: the one below
  std::vector<std::optional<std::int64_t>> seeds;     // of each prompt; fewer: seed plus the number of the prompt
  std::string negative;
  std::optional<std::array<std::int64_t, 2>> size;  // rows, columns
  std::optional<std::int64_t> frames;
  double fps = 16.0;
  std::string sampler = "unipc", time_grid;
  std::int64_t steps = 50;
  std::optional<double> shift;
  double guidance = 5.0;
  std::uint64_t seed = 0;
  std::string noise, save_latents, resume, max_memory;
  std::int64_t preview = 0, threads = 0;
  bool tile = false, overwrite = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit("model", r.model,
          "folder of a model: Wan2.1 as published (original or diffusers), of `mhla convert`, or a run of `mhla train "
          "video`");
    visit("weights", r.weights, "of a run: model or ema (default: ema where there is one)");
    visit(
        "out", r.out,
        "file to write: .mp4, .webp, .gif or .y4m, or a folder of PNG files where the name has no ending; with several "
        "prompts their numbers are added, clip-0001.mp4");
    visit("prompts", r.prompts, "what the video should show");
    visit("negative", r.negative, "what guidance leads away from (default: an empty prompt)");
    visit("size", r.size, "rows and columns of a frame in pixels (default: 480x832, or as in training)");
    visit("frames", r.frames, "frames: one and a multiple of 4 for Wan2.1 (default: 81, or as in training)");
    visit("fps", r.fps, "frames a second of the file");
    visit("sampler", r.sampler, "unipc, dpm++ or euler");
    visit("time_grid", r.time_grid,
          "times of the steps: wan-unipc, wan-dpm, mhla-dpm, diffusers-unipc, diffusers-euler or linear (default: "
          "diffusers-euler for euler, wan-unipc for the others)");
    visit("steps", r.steps, "steps of the sampler");
    visit("shift", r.shift, "shift of the times towards noise (default: the model's own, otherwise 5)");
    visit("guidance", r.guidance, "strength of classifier-free guidance; 1: none, and half the time");
    visit("seed", r.seed, "seed of the noise; with several prompts the first one's, the next has seed + 1");
    visit("noise", r.noise,
          "safetensors file with the noise to start from, one tensor [channels, frames, rows, columns]");
    visit("save_latents", r.save_latents, "file to keep the latents in after every step, for --resume");
    visit("resume", r.resume, "file of --save-latents: continue after its last step; the settings must be the same");
    visit("preview", r.preview, "every so many steps, write the first frame as the model expects it; 0: never");
    visit("vae", r.vae, "folder or file of Wan's autoencoder (default: beside the model)");
    visit("text_encoder", r.text_encoder, "folder or file of umT5 (default: beside the model)");
    visit("text_cache", r.text_cache,
          "file of text embeddings: those in it are used without the text encoder, others are added");
    visit("max_memory", r.max_memory, "memory to plan for, such as 8GiB (default: what is free)");
    visit("tile", r.tile, "decode in overlapping tiles of 256 pixels, which takes less memory");
    visit("overwrite", r.overwrite, "replace --out if it is there");
    visit("device", r.device, "cpu, cuda or cuda:N (default: cpu)");
    visit("precision", r.precision,
          "of weights and activations: f32, or bf16, which on a CPU needs AVX-512 BF16 (default: bf16 on a GPU, else "
          "f32)");
    visit("threads", r.threads, "CPU threads; 0: all");
  }
};

}  // namespace mhla::apps
