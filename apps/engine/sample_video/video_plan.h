// What `mhla sample video` was asked for, checked before any weights are read: which files, which videos, how each is
// made.
#pragma once

#include <optional>

#include "apps/engine/sample_video/video_request.h"
#include "mhla/data/caption_words.h"
#include "mhla/diffusion/samplers.h"
#include "mhla/io/codecs/video_writer.h"
#include "mhla/models/autoencoder/wan_vae.h"
#include "mhla/models/text_encoder/umt5_config.h"
#include "mhla/models/wan/wan_config.h"

namespace mhla::apps {

inline constexpr const char* kVideoCommand = "sample video";  // opens errors

// Where the parts of a model are. A pipeline of diffusers has folders; the original has the transformer in the folder
// itself and the others as files beside it.
struct VideoFiles {
  std::filesystem::path transformer, vae, text_encoder, tokenizer;  // the last three may be empty: not there
  std::filesystem::path weights;                                    // of the transformer: its folder, or one file in it
  std::optional<double> shift;                                      // of the pipeline's scheduler, or of a training
};
VideoFiles find_video_files(const SampleVideoRequest& request);
// SentencePiece's model beside umT5, which may be a folder or a file, or in the folders of `model`; empty: none.
std::filesystem::path umt5_tokenizer(const std::filesystem::path& model, const std::filesystem::path& encoder);

struct VideoPrompt {
  std::string text, negative;
  std::uint64_t seed = 0;
  std::filesystem::path out;
};

struct VideoPlan {
  VideoFiles files;
  WanConfig network;
  WanVaeConfig autoencoder;
  std::optional<Umt5Config> encoder;  // none: all embeddings must be in the cache
  // A model that was trained on pixels has no autoencoder: squares of `unshuffle` are the channels of one place. One
  // with words of its own has no text encoder.
  bool pixels = false;
  std::int64_t unshuffle = 1;
  std::optional<CaptionWords> words;
  std::string device = "cpu", precision = "f32";
  std::array<std::int64_t, 2> size{480, 832};
  std::int64_t frames = 81;
  std::array<std::int64_t, 4> latent{};  // channels, frames, rows, columns
  std::vector<VideoPrompt> prompts;
  SamplerOptions sampler;
  FlowOptions flow;
  double guidance = 1.0;
  JsonValue settings;  // all that a video depends on but its prompt and seed

  [[nodiscard]] bool guided() const { return guidance > 1.0; }
  // Frames and pixels of a side that a latent stands for.
  [[nodiscard]] std::int64_t time_factor() const { return pixels ? 1 : autoencoder.time_factor(); }
  [[nodiscard]] std::int64_t space_factor() const { return pixels ? unshuffle : autoencoder.space_factor(); }
  [[nodiscard]] std::array<std::int64_t, 3> latent_grid() const { return {latent[1], latent[2], latent[3]}; }
  [[nodiscard]] JsonValue settings_of(const VideoPrompt& prompt) const;
  [[nodiscard]] VideoSettings video(const SampleVideoRequest& request, const VideoPrompt& prompt) const;
};

// Errors open with "sample video: " and name the option, or with the path of a file.
VideoPlan plan_video(const SampleVideoRequest& request);

}  // namespace mhla::apps
