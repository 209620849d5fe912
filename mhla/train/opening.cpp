#include "mhla/train/opening.h"

#include "mhla/train/trainer.h"

namespace mhla::train {

void change_options(const OpenOptions& open, TrainOptions& options) {
  if (open.batch > 0) options.batch = open.batch;
  options.threads = open.threads;
  options.deterministic_reduce = false;  // cuts batches of a training
  options.context_parallel = 1;          // and this its sequences
  if (!open.device.empty()) options.device = open.device;
  if (options.device == "cpu") options.precision = "f32";
}

void prepare(const TrainOptions& options, Observer& observer) {
  static std::string said;  // once, however many runs a command opens
  const std::string fewer = prepare(options);
  if (!fewer.empty() && fewer != said) warn(observer, fewer);
  said = fewer;
}

RunWeights find_weights(const std::string& command, const std::filesystem::path& run, const std::string& which,
                        Observer& observer) {
  RunWeights found = Run::open(command, run).weights(which);
  for (const std::string& text : found.warnings) warn(observer, text);
  return found;
}

}  // namespace mhla::train
