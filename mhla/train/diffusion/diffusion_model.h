// The network of a diffusion training: a DiT, which shows a class, or a SANA, which shows a caption.
#pragma once

#include <variant>

#include "mhla/models/dit/dit.h"
#include "mhla/models/sana/sana.h"

namespace mhla::train {

struct NetworkConfig {
  std::variant<DitConfig, SanaConfig> network;
  std::array<std::int64_t, 2> image{};  // rows and columns of a sample: SANA's configuration has none

  NetworkConfig() = default;
  NetworkConfig(const DitConfig& dit) : network(dit), image(dit.image) {}  // NOLINT(google-explicit-constructor)
  NetworkConfig(const SanaConfig& sana, std::array<std::int64_t, 2> of) : network(sana), image(of) {}

  [[nodiscard]] bool takes_captions() const { return std::holds_alternative<SanaConfig>(network); }
  [[nodiscard]] const DitConfig& dit() const { return std::get<DitConfig>(network); }
  [[nodiscard]] const SanaConfig& sana() const { return std::get<SanaConfig>(network); }
  // What `read` makes of the configuration that it is: of a field that both have.
  template <class Read>
  [[nodiscard]] auto of(Read&& read) const {
    return std::visit(std::forward<Read>(read), network);
  }
  [[nodiscard]] std::string model() const {
    return of([](const auto& c) { return c.model; });
  }
  [[nodiscard]] std::string attention() const {
    return of([](const auto& c) { return c.attention; });
  }
  [[nodiscard]] std::int64_t channels() const {
    return of([](const auto& c) { return c.channels; });
  }
  [[nodiscard]] bool learn_sigma() const { return !takes_captions() && dit().learn_sigma; }
  [[nodiscard]] JsonValue to_json() const {
    return of([](const auto& c) { return fields_to_json(c); });
  }
  [[nodiscard]] ModelSize size() const {
    return takes_captions() ? size_of(sana(), image[0], image[1]) : size_of(dit());
  }
};

// Ours, or of diffusers where it is a SANA.
bool is_sana_config(const JsonValue& object);
// config.json of a run; `image` is for SANA.
NetworkConfig read_network_config(const std::filesystem::path& path, std::array<std::int64_t, 2> image);

class DiffusionModel {
 public:
  DiffusionModel() = default;
  explicit DiffusionModel(const NetworkConfig& config);  // draws weights
  [[nodiscard]] const NetworkConfig& config() const { return config_; }
  [[nodiscard]] torch::nn::Module& module() const { return *module_; }
  [[nodiscard]] Denoiser& denoiser() const { return *denoiser_; }
  [[nodiscard]] DitImpl& dit() const { return dynamic_cast<DitImpl&>(*module_); }
  [[nodiscard]] SanaImpl& sana() const { return dynamic_cast<SanaImpl&>(*module_); }
  void constrain() const;  // after an optimiser step

 private:
  NetworkConfig config_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<Denoiser> denoiser_;  // the same object
};

}  // namespace mhla::train
