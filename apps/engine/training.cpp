#include "apps/engine/training.h"

#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/ops/torch_error.h"
#include "mhla/train/distributed/team.h"
#include "mhla/train/model_file.h"
#include "mhla/train/opening.h"

namespace mhla::apps {

using namespace mhla::train;
namespace fs = std::filesystem;

namespace {

// Of a folder that is no run: one file, or the index of several; the last name where none of them is there.
fs::path init_file(const fs::path& folder, const std::string& weights) {
  const fs::path own = folder / (weights + ".safetensors");
  if (weights != "model" || fs::exists(own)) return own;
  for (const char* name : {"model.safetensors.index.json", "diffusion_pytorch_model.safetensors",
                           "diffusion_pytorch_model.safetensors.index.json"})
    if (fs::exists(folder / name)) return folder / name;
  return own;
}

}  // namespace

std::optional<InitSource> init_source(const std::string& command, const TrainOptions& options, const fs::path& folder,
                                      const RunStart& start, Observer& observer) {
  const fs::path init = options.init;
  const bool goes_on = start.resume && !CheckpointFolder(folder / "checkpoints", 1).list().empty();
  if (init.empty() || goes_on) return {};
  if (!fs::exists(init)) fail(command, ": --init is ", options.init, ", which is not there");
  if (!fs::is_directory(init)) {
    if (options.init_weights != "model")
      fail(command, ": --init-weights is ", options.init_weights, ", but --init is a file, expected a folder");
    return InitSource{options.init, init, "", {}, {}};
  }
  std::error_code none;
  if (fs::equivalent(init, folder, none))
    fail(command, ": --init is ", options.init, ", expected another folder than --out");
  RunWeights found{init, init_file(init, options.init_weights), "", {}};
  if (fs::exists(init / "train.json")) {
    found = find_weights(command, init, options.init_weights, observer);
  } else if (!fs::exists(init / "config.json") || !fs::exists(found.file)) {
    fail(command, ": --init is ", options.init, ", which has not both config.json and ", found.file.filename().string(),
         ", expected a run, a folder of mhla convert or a .safetensors file");
  }
  return InitSource{options.init, found.file, found.prefix, found.folder / "config.json", init};
}

void note_init(const InitSource& source, const std::vector<std::string>& changes, JsonValue& origin, RunStart& start) {
  origin.set("init_crc32c", static_cast<std::int64_t>(file_crc32c(source.file)));
  JsonValue lines = JsonValue::array();
  for (const std::string& change : changes) lines.push(change);
  start.said.set("init", source.file.string()).set("changed", lines);
}

void settle_warmup(const Task& task, TrainOptions& options, RunStart& start) {
  if (options.warmup_steps) return;
  options.warmup_steps = warmup_of(options, total_steps(task, options));
  if (*options.warmup_steps < options.usual_warmup) start.said.set("warmup_steps", *options.warmup_steps);
}

namespace {

struct Quiet : Observer {
  void row(const JsonValue&) override {}
  void progress(const JsonValue&) override {}
};

// A run that a signal ended, on all ranks alike: nobody failed.
struct StoppedRun : RunFailed {
  using RunFailed::RunFailed;
};

// Each process of a machine has a GPU of its own, as far as there are some.
std::string device_for(const std::string& device, int local_rank) {
  if ((device != "cuda" && device != "cuda:0") || !torch::cuda::is_available()) return device;
  return str("cuda:", local_rank % static_cast<int>(torch::cuda::device_count()));
}

}  // namespace

void in_team(TrainOptions& options, Observer& observer, const std::function<void(Observer&)>& work) {
  const distributed::World world = distributed::world_from_environment();
  if (world.alone()) {
    place_sequences(options);
    return work(observer);
  }
  distributed::Team team(world, options.timeout);
  options.place = {.rank = world.rank, .ranks = world.size, .local_ranks = world.local_size, .maybe_team = &team};
  options.device = device_for(options.device, world.local_rank);
  Quiet quiet;
  const auto silence = [&](const std::exception& error, bool my_own, int code) {
    if (!team.leave_with(ops::short_reason(error), my_own, code == kCallersMistake)) throw SaidElsewhere{code};
  };
  Observer& heard = world.leads() ? observer : quiet;
  try {
    place_sequences(options);
    const torch::Device device = device_of(options.device);
    const std::string no_nccl = team.use_device(device);
    if (device.is_cuda() && !no_nccl.empty())
      warn(heard, str("tensors of a GPU go through host memory: NCCL is not used: ", no_nccl));
    work(heard);
  } catch (const Error& error) {
    silence(error, true, kCallersMistake);
    throw;
  } catch (const distributed::RankFailed& error) {
    silence(error, false, kFailed);
    throw;
  } catch (const StoppedRun& error) {
    silence(error, false, kFailed);
    throw;
  } catch (const std::exception& error) {
    silence(error, true, kFailed);
    throw;
  }
}

void say_sharing(const TrainOptions& options, const SharedKind& kind, Observer& observer) {
  observer.row(JsonValue().set("kind", "context").set("text", describe_sharing(options, kind)));
}

void first_then_rest(const Place& place, const std::function<void()>& work, const char* what) {
  place.maybe_team == nullptr ? work() : place.maybe_team->first_then_rest(work, what);
}

void run_to_end(Trainer& trainer, const RunStart& start, const fs::path& folder) {
  const TrainResult result = trainer.run(start);
  if (!result.stopped.empty())
    throw StoppedRun(str("train: stopped by ", result.stopped, " at step ", result.step, " of ", trainer.total_steps(),
                         ", which is saved; go on with --resume --out ", folder.string()));
}

std::string model_of(const std::string& model, const fs::path& run) {
  const fs::path own = run / "config.json";
  return is_model_file(model) && !fs::exists(model) && fs::exists(own) ? own.string() : model;
}

}  // namespace mhla::apps
