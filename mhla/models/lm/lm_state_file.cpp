// Streaming states of a language model in safetensors files.
#include <cstdio>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/models/lm/lm.h"
#include "mhla/models/weights_file.h"

namespace mhla {
namespace {

constexpr const char *kVersionKey = "mhla.lm_state", *kVersion = "1", *kConfigKey = "mhla.config",
                     *kWeightsKey = "mhla.weights", *kNote = "note.", *kText = "text.";

std::string layer_prefix(std::size_t layer) { return str("layers.", layer, "."); }

// Of all weights, in the order of their names.
std::string checksum(const LanguageModelImpl& model) {
  std::uint32_t sum = 0;
  for (const auto& [name, value] : weights_of(model)) {
    const torch::Tensor host = value.cpu().contiguous();
    sum = crc32c({static_cast<const std::byte*>(host.data_ptr()), host.nbytes()}, sum);
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08x", sum);
  return text;
}

}  // namespace

void save_state(const LanguageModelImpl& model, const LmState& state, const std::filesystem::path& path,
                const std::map<std::string, std::string>& notes) {
  SavedState saved;
  for (std::size_t layer = 0; layer < state.layers.size(); ++layer)
    save(state.layers[layer], layer_prefix(layer), saved);
  Metadata metadata{{kVersionKey, kVersion},
                    {kConfigKey, write_json(fields_to_json(model.config()))},
                    {kWeightsKey, checksum(model)}};
  for (const auto& [name, text] : saved.text) metadata[kText + name] = text;
  for (const auto& [name, text] : notes) metadata[kNote + name] = text;
  write_weights(path, saved.tensors, metadata);
}

LmState load_state(const LanguageModelImpl& model, const std::filesystem::path& path,
                   std::map<std::string, std::string>* notes) {
  const std::string file = path.string();
  const Safetensors safetensors = Safetensors::read(path);
  const auto value = [&](const char* key) {
    const auto found = safetensors.metadata().find(key);
    return found == safetensors.metadata().end() ? std::string() : found->second;
  };
  if (value(kVersionKey) != kVersion)
    fail(file, ": ", kVersionKey, " is '", value(kVersionKey), "', expected the state of a language model, version ",
         kVersion);
  const std::string config = write_json(fields_to_json(model.config()));
  if (value(kConfigKey) != config)
    fail(file, ": is the state of another model, ", value(kConfigKey), "; expected ", config);
  if (const std::string own = checksum(model); value(kWeightsKey) != own)
    fail(file, ": is the state of other weights, checksum ", value(kWeightsKey), ", expected ", own);
  SavedState saved;
  saved.tensors = weights_in(safetensors);
  for (const auto& [key, text] : safetensors.metadata()) {
    if (key.rfind(kText, 0) == 0) saved.text[key.substr(5)] = text;
    if (key.rfind(kNote, 0) == 0 && notes != nullptr) (*notes)[key.substr(5)] = text;
  }
  const LmState fresh = model.begin(1);
  LmState state;
  for (std::size_t layer = 0; layer < fresh.layers.size(); ++layer) {
    state.layers.push_back(load(saved, layer_prefix(layer), fresh.layers[layer], file.c_str()));
    if (state.layers.back().positions != state.layers.front().positions)
      fail(file, ": layers 0 and ", layer, " stand at different places");
  }
  return state;
}

}  // namespace mhla
