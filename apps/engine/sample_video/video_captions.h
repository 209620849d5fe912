// Prompts as Wan takes them: states of umT5 up to the end of the text, zeros after it. They can be kept in a file
// (--text-cache), so that the encoder, the largest of the three models, is loaded once or never.
#pragma once

#include <map>

#include "apps/engine/sample_video/video_plan.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

using CaptionStates = std::map<std::string, torch::Tensor>;  // cleaned text -> [tokens, text_dim] f32 on the host

class VideoCaptions {
 public:
  // Reads the cache and finds what has to be encoded. Refuses prompts that are longer than the model takes, texts that
  // are neither in the cache nor can be encoded, and a cache of another encoder. Loads no encoder.
  VideoCaptions(const VideoPlan& plan, const SampleVideoRequest& request);

  [[nodiscard]] std::int64_t missing() const { return static_cast<std::int64_t>(missing_.size()); }
  [[nodiscard]] std::int64_t longest() const { return longest_; }  // tokens of what is missing
  // Loads the encoder, computes what is missing, frees it and writes the cache.
  void encode(torch::Device device);
  // [1, text_tokens, text_dim] on the host; of a model with words of its own their numbers, [1, text_tokens].
  [[nodiscard]] torch::Tensor states(const std::string& text) const;

 private:
  [[nodiscard]] std::string encoder_id() const;
  void read_cache(const std::filesystem::path& path);
  void write_cache(const std::filesystem::path& path) const;

  const VideoPlan& plan_;
  std::filesystem::path cache_;
  CaptionStates known_;
  std::map<std::string, std::vector<std::int64_t>> missing_;  // cleaned text -> ids
  std::string cached_id_;                                     // of the encoder that made the cache
  std::int64_t longest_ = 0;
};

}  // namespace mhla::apps
