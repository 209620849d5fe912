#include "mhla/train/run_start.h"

#include <iterator>

#include "mhla/core/error.h"
#include "mhla/train/runs/checkpoints.h"
#include "mhla/train/trainer.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWeights[] = {"model.safetensors", "ema.safetensors", "best.safetensors"};
constexpr const char* kOthers[] = {"train.json",     "config.json",     "log.jsonl",
                                   "classes.json",   "preprocess.json", "generation.json",
                                   "tokenizer.json", "tokenizer.model", "tokenizer.fingerprint"};
constexpr const char* kEvents = "events.out.tfevents.";

std::string weights_in(const fs::path& folder) {  // the first of them that is there
  for (const char* name : kWeights) {
    if (fs::exists(folder / name)) return name;
  }
  return {};
}

}  // namespace

void expect_room(const fs::path& folder, const RunStart& start) {
  if (start.resume && start.overwrite) fail("train: --resume and --overwrite are given, expected one of them");
  if (start.overwrite) return;
  const std::vector<Checkpoint> all = CheckpointFolder(folder / "checkpoints", 1).list();
  const std::string weights = weights_in(folder);
  if (!start.resume && (!weights.empty() || !all.empty()))
    fail(folder.string(), ": has a run already (", weights.empty() ? all.back().path.filename().string() : weights,
         "), expected --resume, --overwrite or another folder");
  if (!start.resume) return;
  const fs::path options = folder / "train.json";
  if (!all.empty() && !fs::exists(options))
    fail(options.string(), ": is missing, so --resume does not know the options of the run; ",
         (all.back().path / "train.json").string(), " is a copy of it");
  // best.safetensors is of a run that is not at its end, and stays unless it is beaten.
  if (all.empty() && (fs::exists(folder / kWeights[0]) || fs::exists(folder / kWeights[1])))
    fail(folder.string(), ": has ", weights, " but no checkpoint to resume from; --init ", folder.string(),
         " with another --out trains on from these weights, --overwrite starts anew here");
}

void remove_run(const fs::path& folder) {
  std::error_code none;
  CheckpointFolder(folder / "checkpoints", 1).clear();
  std::vector<fs::path> files;
  for (const char* name : kWeights) files.push_back(folder / name);
  for (const char* name : kOthers) files.push_back(folder / name);
  for (fs::directory_iterator at(folder, none), end; !none && at != end; at.increment(none))
    if (at->path().filename().string().rfind(kEvents, 0) == 0) files.push_back(at->path());
  for (fs::directory_iterator at(folder / kPictures, none), end; !none && at != end; at.increment(none)) {
    const std::string name = at->path().filename().string();
    if (name.rfind("step-", 0) == 0 && at->path().extension() == ".png") files.push_back(at->path());
  }
  for (const fs::path& file : files) {
    if (fs::is_regular_file(file, none)) fs::remove(file, none);
  }
  fs::remove(folder / kPictures, none);  // where it is empty
}

std::vector<std::string> files_of_start() {
  std::vector<std::string> names{".lock"};
  names.insert(names.end(), std::begin(kOthers), std::end(kOthers));
  return names;
}

}  // namespace mhla::train
