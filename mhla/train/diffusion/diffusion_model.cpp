#include "mhla/train/diffusion/diffusion_model.h"

#include "mhla/io/json_object.h"

namespace mhla::train {

bool is_sana_config(const JsonValue& object) {
  const auto is = [&](const char* key, const char* text) {
    const JsonValue* value = object.find(key);
    return value != nullptr && value->is_string() && value->as_string() == text;
  };
  return is("family", "sana") || is("_class_name", "SanaTransformer2DModel");
}

NetworkConfig read_network_config(const std::filesystem::path& path, std::array<std::int64_t, 2> image) {
  const JsonValue object = read_json_object(path);
  if (is_sana_config(object)) return {parse_sana_config(object, path.string()), image};
  return parse_dit_config(object, path.string());
}

DiffusionModel::DiffusionModel(const NetworkConfig& config) : config_(config) {
  if (config.takes_captions()) {
    const auto model = std::make_shared<SanaImpl>(config.sana());
    module_ = model, denoiser_ = model;
  } else {
    const auto model = std::make_shared<DitImpl>(config.dit());
    module_ = model, denoiser_ = model;
  }
}

void DiffusionModel::constrain() const { config_.takes_captions() ? sana().constrain() : dit().constrain(); }

}  // namespace mhla::train
