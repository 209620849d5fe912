// How a training begins and ends, whatever its task.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/core/run_failed.h"
#include "mhla/train/init_source.h"
#include "mhla/train/sharing.h"
#include "mhla/train/trainer.h"

namespace mhla::apps {

// Where the weights of `init` are, or none: there is no init, or the run goes on from a checkpoint in `folder`.
std::optional<train::InitSource> init_source(const std::string& command, const train::TrainOptions& options,
                                             const std::filesystem::path& folder, const train::RunStart& start,
                                             train::Observer& observer);
// What train.json and the first row of the log say of it.
void note_init(const train::InitSource& source, const std::vector<std::string>& changes, JsonValue& origin,
               train::RunStart& start);
// The warm-up that the options leave open, for the steps of the task. One that is shorter than usual is said when the
// run begins.
void settle_warmup(const train::Task& task, train::TrainOptions& options, train::RunStart& start);
// The processes that train together, as the environment says (torchrun, mhla train --nproc), or this one alone. Sets
// the place in `options`; ranks other than 0 are given an observer that says nothing. Where the work fails, one process
// of them says why.
void in_team(train::TrainOptions& options, train::Observer& observer,
             const std::function<void(train::Observer&)>& work);
// A line that says what processes which share sequences exchange.
void say_sharing(const train::TrainOptions& options, const train::SharedKind& kind, train::Observer& observer);
// Rank 0 does it first: what it makes on disk, the others find.
void first_then_rest(const train::Place& place, const std::function<void()>& work, const char* what);
// What in_team() throws where another process has said it.
struct SaidElsewhere {
  int code;  // the exit code
};
// Runs to the end; a signal that ended it early is RunFailed.
void run_to_end(train::Trainer& trainer, const train::RunStart& start, const std::filesystem::path& folder);
// The model of a run that goes on. Runs made before name the file it was described by; where that is gone, the run's
// config.json says the same.
std::string model_of(const std::string& model, const std::filesystem::path& run);

// For throwing: "eval lm: the weights in FILE give NaN or infinite values".
inline Error not_finite(const std::string& command, const std::filesystem::path& weights) {
  return Error(str(command, ": the weights in ", weights.string(), " give NaN or infinite values"));
}

}  // namespace mhla::apps
