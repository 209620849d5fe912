// What `mhla data encode` asks the engine for (apps/engine/requests.h has the other requests).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "mhla/io/fields.h"

namespace mhla::apps {

// `mhla data encode`: images and captions to cached latents and states.
struct EncodeRequest {
  std::string data, split = "train", captions, out, vae, text_encoder, posterior = "sample", dtype = "bf16",
                    device = "cpu";
  std::int64_t image = 0, frames = 81, caption_tokens = 0, seed = 0, shard_items = 0, batch = 8, threads = 0;
  std::optional<std::array<std::int64_t, 2>> size;  // rows, columns
  double fps = 16.0;
  bool flip = false;

  template <class Self, class Visit>
  static void fields(Self& r, Visit&& visit) {
    visit(
        "data", r.data,
        "images as `mhla train classify` takes them, with --text-encoder a folder of images; with Wan's autoencoder a "
        "folder of videos as `mhla train video` takes it");
    visit("split", r.split, "train or test");
    visit("vae", r.vae,
          "folder of the autoencoder: SD VAE, DC-AE or, for videos, Wan VAE, as diffusers publishes them");
    visit("image", r.image,
          "pixels of a side: images are scaled and the middle is cut out (default: as they are, if all have one size)");
    visit("frames", r.frames, "videos: frames of a clip, the beginning of each file: one and a multiple of 4");
    visit("size", r.size, "videos: rows and columns of a frame: scaled, and the middle is cut out (default: 480x832)");
    visit("fps", r.fps, "videos: frames a second; 0: every frame as it comes");
    visit("flip", r.flip, "also encode the mirror images");
    visit("posterior", r.posterior, "SD VAE: sample, one drawn for every image, or mean");
    visit("seed", r.seed, "seed of the samples");
    visit("text_encoder", r.text_encoder,
          "folder of Gemma-2 and its tokenizer, for videos of umT5: captions instead of classes");
    visit("captions", r.captions,
          "JSON lines {\"image\": \"a.png\", \"caption\": \"...\"} (default: a.txt beside a.png); without --vae, "
          "captions "
          "only");
    visit("caption_tokens", r.caption_tokens, "tokens of a caption (default: 300, of videos 512)");
    visit("dtype", r.dtype, "type in the files: bf16, f16 or f32");
    visit("out", r.out, "folder for the latents; what is there already is kept");
    visit("shard_items", r.shard_items, "items of a file (default: as many as 128 MiB hold, at most 4096)");
    visit("batch", r.batch, "images at a time");
    visit("device", r.device, "cpu, cuda or cuda:N");
    visit("threads", r.threads, "CPU threads; 0: all");
  }
};

}  // namespace mhla::apps
