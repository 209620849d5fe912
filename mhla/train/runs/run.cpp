#include "mhla/train/runs/run.h"

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"
#include "mhla/io/json_object.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

CheckpointFolder checkpoints_in(const fs::path& run) { return {run / "checkpoints", 1}; }

// The cause where train.json is missing.
void expect_options(const std::string& who, const fs::path& run) {
  const fs::path options = run / kOptionsFile;
  if (fs::exists(options)) return;
  const std::vector<Checkpoint> all = checkpoints_in(run).list();
  if (!all.empty())
    fail(who, ": ", options.string(), " is missing; ", (all.back().path / kOptionsFile).string(), " is a copy of it");
  if (fs::exists(run / "config.json"))
    fail(who, ": ", run.string(),
         " has config.json but no train.json: the folder of a model, expected that of a training");
  if (fs::exists(run / "model.safetensors"))
    fail(who, ": ", run.string(), " has weights but neither train.json nor config.json, which say what they are of");
  fail(who, ": ", run.string(), " has no train.json, expected the folder of a training");
}

}  // namespace

Run Run::open(const std::string& who, const fs::path& folder) {
  if (!fs::is_directory(folder)) fail(who, ": ", folder.string(), " is no folder of a run");
  expect_options(who, folder);
  return {who, folder, read_json_object(folder / kOptionsFile)};
}

std::string Run::task() const {
  return labelled((folder_ / kOptionsFile).string(), [&] { return task_of(options_); });
}

std::vector<Checkpoint> Run::checkpoints() const { return checkpoints_in(folder_).list(); }

RunWeights Run::weights(const std::string& which) const {
  if (which == "ema") {
    if (const JsonValue* ema = options_.find("ema"); ema == nullptr || ema->as_double() == 0.0)
      fail(who_, ": --weights is ema, but ", folder_.string(), " has no average of its weights (ema 0)");
  }
  const fs::path final_file = folder_ / (which + ".safetensors");
  if (which == "best" && !fs::exists(final_file))
    fail(who_, ": --weights is best, but ", folder_.string(), " has no ", kBestFile,
         ": nothing was evaluated yet, or it was trained with --no-keep-best");
  if (fs::exists(final_file)) return {folder_, final_file, "", {}};
  RunWeights found;
  const std::optional<Checkpoint> newest = checkpoints_in(folder_).newest(found.warnings);
  if (!newest) fail(who_, ": ", final_file.string(), " is not there, and ", folder_.string(), " has no checkpoint");
  found.warnings.push_back(str("the run is not at its end: these are the weights of ", newest->path.string()));
  const bool average = which == "ema";
  found.folder = newest->path;
  found.file = newest->path / (average ? kStateFile : "model.safetensors");
  found.prefix = average ? "ema." : "";
  return found;
}

std::string task_of(const JsonValue& options) {
  if (const JsonValue* task = options.find("task")) return labelled("'task'", [&] { return task->as_string(); });
  return options.contains("packing") ? "lm" : "classify";
}

}  // namespace mhla::train
