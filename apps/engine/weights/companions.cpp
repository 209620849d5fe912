#include "apps/engine/weights/companions.h"

#include <vector>

#include "mhla/data/caption_words.h"
#include "mhla/data/class_names.h"
#include "mhla/data/preprocess.h"
#include "mhla/diffusion/generation_config.h"
#include "mhla/io/file.h"
#include "mhla/io/json_object.h"
#include "mhla/models/classify/classifier_config.h"

namespace mhla::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptions = "train.json";
constexpr const char* kKeys[][2] = {
    {kPreprocessFile, "mhla.preprocess"}, {kClassesFile, "mhla.classes"}, {kGenerationFile, "mhla.generation"}};

std::vector<const char*> names_of(ModelKind kind) {
  if (kind == ModelKind::kLanguage)
    return {kPreprocessFile, "tokenizer.json", "tokenizer.model", "tokenizer.fingerprint"};
  if (kind == ModelKind::kGenerator) return {kGenerationFile, kClassesFile, kWordsFile};
  return {kPreprocessFile, kClassesFile};
}

std::string bytes_of(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string text_at(const JsonValue& object, const char* key) {
  const JsonValue* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : std::string();
}

std::string from_options(const fs::path& run, ModelKind kind) {
  const JsonValue options = read_json_object(run / kOptions);
  if (kind == ModelKind::kLanguage) return preprocess_text(text_preprocess(options));
  const ClassifierConfig network = read_classifier_config(run / "config.json");
  return preprocess_text(
      fields_to_json(preprocess_of(text_at(options, "augment"), text_at(options, "normalize"),
                                   image_kind(text_at(options, "data")), static_cast<int>(network.channels))));
}

}  // namespace

Companions companions_in(const fs::path& given, ModelKind kind) {
  const fs::path above = fs::absolute(given / "").parent_path().parent_path().parent_path();  // RUN/checkpoints/step-N
  const fs::path folder = fs::exists(given / "checkpoint.json") && fs::exists(above / kOptions) ? above : given;
  Companions found;
  for (const char* name : names_of(kind)) {
    if (fs::exists(folder / name)) found[name] = bytes_of(folder / name);
  }
  if (kind != ModelKind::kGenerator && found.count(kPreprocessFile) == 0 && fs::exists(folder / kOptions))
    found[kPreprocessFile] = from_options(folder, kind);
  return found;
}

Companions companions_of_file(const fs::path& file, const fs::path& config, ModelKind kind) {
  Companions found;
  if (config.filename() == "config.json") found = companions_in(fs::absolute(config).parent_path(), kind);
  const Metadata metadata = Safetensors::read(file).metadata();
  for (const auto& [name, key] : kKeys) {
    if (const auto kept = metadata.find(key); kept != metadata.end())
      found[name] = write_json(parse_json(kept->second, file.string()), 2) + "\n";
  }
  return found;
}

void write_companions(const Companions& companions, const fs::path& folder) {
  for (const auto& [name, bytes] : companions) write_file(folder / name, bytes);
}

Metadata companions_metadata(const Companions& companions) {
  Metadata metadata{{"format", "pt"}};
  for (const auto& [name, key] : kKeys) {
    if (const auto found = companions.find(name); found != companions.end())
      metadata[key] = write_json(parse_json(found->second, name));
  }
  return metadata;
}

}  // namespace mhla::weights
