#include <algorithm>

#include "apps/engine/sample_video/video_plan.h"
#include "mhla/io/folder.h"
#include "mhla/io/json_object.h"

namespace mhla::apps {
namespace {

namespace fs = std::filesystem;

// Names of the original files, whose pickles the engine does not read.
constexpr const char *kVaeFile = "Wan2.1_VAE", *kEncoderFile = "models_t5_umt5-xxl-enc-bf16";

// A folder of a pipeline, the file of the original, or nothing. A .pth alone is refused with what to do.
fs::path part_beside(const fs::path& model, const char* folder, const char* file) {
  if (is_there(model / folder / "config.json")) return model / folder;
  const fs::path weights = model / (std::string(file) + ".safetensors"), pickle = model / (std::string(file) + ".pth");
  if (is_there(weights)) return weights;
  if (is_there(pickle))
    fail(kVideoCommand, ": ", pickle.string(), " is a pickle, expected ", weights.filename().string(),
         " beside it: scripts/pth_to_safetensors.py writes it");
  return {};
}

fs::path given_part(const std::string& given, const char* option) {
  if (!is_there(given)) fail(kVideoCommand, ": ", option, " is ", given, ", which is not there");
  return given;
}

// flow_shift of diffusers' scheduler; its model is not shifted twice.
std::optional<double> scheduler_shift(const fs::path& model) {
  const fs::path file = model / "scheduler" / "scheduler_config.json";
  if (!is_there(file)) return {};
  const JsonValue config = read_json_object(file);
  for (const char* key : {"flow_shift", "shift"})
    if (const JsonValue* value = config.find(key); value != nullptr && value->is_number()) return value->as_double();
  return {};
}

// The file that is asked for of a run, which has several; otherwise the folder.
fs::path transformer_weights(const SampleVideoRequest& r, const fs::path& folder) {
  if (r.weights.empty() && !is_there(folder / "train.json")) return folder;
  const fs::path ema = folder / "ema.safetensors";
  const fs::path file = r.weights.empty() && is_there(ema)
                            ? ema
                            : folder / (str(r.weights.empty() ? "model" : r.weights, ".safetensors"));
  if (!is_there(file))
    fail(kVideoCommand, ": ", file.string(), " is not there",
         r.weights.empty() ? ": the run is not finished" : ", expected other --weights");
  return file;
}

}  // namespace

fs::path umt5_tokenizer(const fs::path& model, const fs::path& encoder) {
  std::vector<fs::path> folders{model / "tokenizer", model / "google" / "umt5-xxl"};
  if (!encoder.empty()) {
    const fs::path own = is_folder(encoder) ? encoder : encoder.parent_path();
    const fs::path above = fs::absolute(own / "").parent_path().parent_path();
    folders.insert(folders.begin(), {own, above / "tokenizer", own / "google" / "umt5-xxl"});
  }
  for (const fs::path& folder : folders)
    for (const char* name : {"spiece.model", "tokenizer.model"})
      if (is_there(folder / name)) return folder / name;
  return {};
}

VideoFiles find_video_files(const SampleVideoRequest& r) {
  const fs::path model = r.model;
  if (!is_folder(model)) fail(kVideoCommand, ": --model is ", r.model, ", which is not there, expected a folder");
  VideoFiles files;
  const fs::path part = model / "transformer";
  files.transformer = !is_there(model / "config.json") && is_there(part / "config.json") ? part : model;
  if (!is_there(files.transformer / "config.json"))
    fail(kVideoCommand, ": ", r.model, " has no config.json and no transformer/config.json, expected a Wan model");
  files.weights = transformer_weights(r, files.transformer);
  files.vae = r.vae.empty() ? part_beside(model, "vae", kVaeFile) : given_part(r.vae, "--vae");
  files.text_encoder = r.text_encoder.empty() ? part_beside(model, "text_encoder", kEncoderFile)
                                              : given_part(r.text_encoder, "--text-encoder");
  files.tokenizer = umt5_tokenizer(model, files.text_encoder);
  files.shift = scheduler_shift(model);
  return files;
}

}  // namespace mhla::apps
