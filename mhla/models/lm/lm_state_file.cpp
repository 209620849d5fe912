// Streaming states of a language model in safetensors files.
#include <cstdio>
#include <span>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/models/lm/lm.h"
#include "mhla/models/weights_file.h"

namespace mhla {
namespace {

constexpr const char *kVersionKey = "mhla.lm_state", *kVersion = "1", *kConfigKey = "mhla.config",
                     *kWeightsKey = "mhla.weights", *kChecksumKey = "mhla.checksum", *kNote = "note.", *kText = "text.";

std::string layer_prefix(std::size_t layer) { return str("layers.", layer, "."); }

// CRC-32C of all numbers, in the order of their names, behind `before`.
template <class Tensors>
std::string checksum(const Tensors& tensors, std::uint32_t before = 0) {
  std::uint32_t sum = before;
  for (const auto& [name, value] : tensors) {
    const torch::Tensor host = value.cpu().contiguous();
    sum = crc32c({static_cast<const std::byte*>(host.data_ptr()), host.nbytes()}, sum);
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08x", sum);
  return text;
}

// Of the state itself: its numbers, its text and the caller's notes.
template <class Tensors>
std::string state_checksum(const Tensors& tensors, const Metadata& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata)
    if (key != kChecksumKey) text += key + '\n' + value + '\n';
  return checksum(tensors, crc32c(std::as_bytes(std::span(text.data(), text.size()))));
}

}  // namespace

void save_state(const LanguageModelImpl& model, const LmState& state, const std::filesystem::path& path,
                const std::map<std::string, std::string>& notes) {
  SavedState saved;
  for (std::size_t layer = 0; layer < state.layers.size(); ++layer)
    save(state.layers[layer], layer_prefix(layer), saved);
  Metadata metadata{{kVersionKey, kVersion},
                    {kConfigKey, write_json(fields_to_json(model.config()))},
                    {kWeightsKey, checksum(weights_of(model))}};
  for (const auto& [name, text] : saved.text) metadata[kText + name] = text;
  for (const auto& [name, text] : notes) metadata[kNote + name] = text;
  metadata[kChecksumKey] = state_checksum(saved.tensors, metadata);
  write_weights(path, saved.tensors, metadata);
}

std::map<std::string, std::string> state_notes(const std::filesystem::path& path) {
  std::map<std::string, std::string> notes;
  const Safetensors file = Safetensors::read(path);
  for (const auto& [key, text] : file.metadata())
    if (key.rfind(kNote, 0) == 0) notes[key.substr(5)] = text;
  return notes;
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
  if (const std::string own = checksum(weights_of(model)); value(kWeightsKey) != own)
    fail(file, ": is the state of other weights, checksum ", value(kWeightsKey), ", expected ", own);
  SavedState saved;
  saved.tensors = weights_in(safetensors);
  if (state_checksum(saved.tensors, safetensors.metadata()) != value(kChecksumKey))
    fail(file, ": the checksum is wrong, the state is damaged");
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
