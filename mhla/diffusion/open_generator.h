// A model that generates images, opened from its folder: config.json (DiT, DiG or SANA), generation.json, classes.json
// and weights. It is described first, without its weights, so that mistakes and a lack of memory are found before
// anything is allocated.
#pragma once

#include <array>
#include <memory>
#include <variant>

#include "mhla/diffusion/generation_config.h"
#include "mhla/models/denoiser.h"
#include "mhla/models/dit/dit_config.h"
#include "mhla/models/model_size.h"
#include "mhla/models/sana/sana_config.h"

namespace mhla {

struct GeneratorPlan {
  std::filesystem::path folder;  // of config.json
  std::variant<DitConfig, SanaConfig> network;
  GenerationConfig generation;
  std::vector<std::string> class_names;  // one for every class; empty: the model takes captions

  [[nodiscard]] bool takes_captions() const { return std::holds_alternative<SanaConfig>(network); }
  [[nodiscard]] const std::string& model() const;      // "dit_s_2"
  [[nodiscard]] const std::string& attention() const;  // "mhla"
  [[nodiscard]] std::int64_t channels() const;         // of a sample
  [[nodiscard]] std::int64_t patch() const;            // rows and columns of a sample are multiples of it
  [[nodiscard]] bool has_null_class() const;           // guidance by classes needs one
  // Rows and columns of a sample that the model was trained on. Published SANA does not tell: none.
  [[nodiscard]] std::optional<std::array<std::int64_t, 2>> own_size() const;
  // The same model for samples of this size; a size that does not fit is an Error.
  [[nodiscard]] GeneratorPlan at(std::array<std::int64_t, 2> size) const;
  [[nodiscard]] ModelSize size_at(std::array<std::int64_t, 2> size) const;
};

// `companions`: folder of generation.json and classes.json, which is the run's for a checkpoint. Without the first file
// the network is taken as published. A config.json of another model is refused, naming what it is of.
GeneratorPlan describe_generator(const std::filesystem::path& folder, const std::filesystem::path& companions);
inline GeneratorPlan describe_generator(const std::filesystem::path& folder) {
  return describe_generator(folder, folder);
}

struct Generator {
  std::shared_ptr<torch::nn::Module> network;
  std::shared_ptr<Denoiser> denoiser;  // the same object
};

// Weights of any floating-point type, in f32 and in evaluation mode. `file`: a safetensors file whose tensors are
// called `prefix` and their names; empty: the folder's own, in one file or shards. `size`: of a sample, where it is
// another than the model's: positions are interpolated and mixing matrices stay those of the blocks.
Generator load_generator(const GeneratorPlan& plan, const std::filesystem::path& file = {},
                         const std::string& prefix = {}, std::optional<std::array<std::int64_t, 2>> size = {});

}  // namespace mhla
