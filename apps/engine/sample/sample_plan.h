// What `mhla sample` was asked for, checked before any weights are read: which model, which images, how each is made.
#pragma once

#include <optional>

#include "apps/engine/requests.h"
#include "mhla/diffusion/guidance.h"
#include "mhla/diffusion/open_generator.h"
#include "mhla/diffusion/samplers.h"
#include "mhla/models/autoencoder/autoencoder_config.h"
#include "mhla/train/observer.h"

namespace mhla::apps {

inline constexpr const char* kSampleCommand = "sample";  // opens errors
inline constexpr const char* kChecksum = "_crc32c";  // ends the name of a setting: of the model at the path before it
using Plane = std::array<std::int64_t, 2>;           // rows, columns

struct SamplePlan {
  GeneratorPlan generator;
  std::filesystem::path weights;  // a file, or a folder of shards
  std::string prefix;             // of the tensors in it
  std::string device;
  Plane samples{}, images{};  // sizes of what the network makes, and of the images: the same without an autoencoder
  std::filesystem::path vae, text_encoder;
  std::optional<AutoencoderConfig> autoencoder;  // none: the network makes pixels
  GuidanceOptions guidance;
  SamplerOptions sampler;
  std::vector<std::int64_t> classes;
  std::vector<std::string> prompts;
  std::int64_t per_class = 1;
  JsonValue settings;  // all that the images depend on, for sample.json

  [[nodiscard]] bool guided() const { return guidance.scale != 1.0; }
  // Image `number` is of class or prompt number % kinds(): a larger per_class adds images and changes none.
  [[nodiscard]] std::int64_t kinds() const {
    return static_cast<std::int64_t>(prompts.empty() ? classes.size() : prompts.size());
  }
  [[nodiscard]] std::int64_t count() const { return kinds() * per_class; }
  [[nodiscard]] std::size_t kind_of(std::int64_t number) const { return static_cast<std::size_t>(number % kinds()); }
  [[nodiscard]] std::unique_ptr<Sampler> make_sampler() const;  // of the model's process
  double latent_scale = 0, latent_shift = 0;                    // of the autoencoder, or the model's own
  double shift = 1.0;                                           // flow matching
};

// Errors open with "sample: " and name the option, or with the path of a file.
SamplePlan plan_sampling(const SampleImagesRequest& request, train::Observer& observer);

// A class by its number or name. Refused with the nearest name.
std::int64_t class_called(const std::string& given, const std::vector<std::string>& names);

}  // namespace mhla::apps
