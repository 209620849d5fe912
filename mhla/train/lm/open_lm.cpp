#include "mhla/train/lm/open_lm.h"

#include "mhla/core/error.h"
#include "mhla/data/preprocess.h"
#include "mhla/train/lm/run_tokenizer.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/trainer.h"
#include "mhla/train/weights.h"

namespace mhla::train {

namespace fs = std::filesystem;

std::string policy_of(const LanguageModelImpl& model) {
  const bool acts = model.config().attention == "mhla" || model.length_policy() == LengthPolicy::kTruncateLeft;
  return acts ? std::string(name_of(model.length_policy())) : "none";
}

TokenizerPtr text_of(const std::string& command, const LmRun& run) {
  if (run.maybe_tokenizer == nullptr)
    fail(command, ": ", run.weights.string(), " was trained on ", run.options.data,
         ", whose ids are no text: expected a run on text, or eval lm --task mqar");
  return run.maybe_tokenizer;
}

LmRun open_lm_run(const std::string& command, const OpenOptions& open, Observer& observer) {
  const fs::path run = open.run;
  LmRun opened;
  RunWeights found{run, run / (open.weights + ".safetensors"), "", {}};
  if (fs::exists(run / "train.json")) {
    const Run saved = Run::open(command, run);
    if (saved.task() != LmOptions::kTask) fail(command, ": ", run.string(), " is no run of `mhla train lm`");
    found = find_weights(command, run, open.weights, observer);
    options_from_json(opened.options, saved.options(), (run / kOptionsFile).string());
    opened.options = located(opened.options);
  } else if (!fs::exists(run / "config.json")) {
    find_weights(command, run, open.weights, observer);  // which names the cause
  } else if (!fs::exists(found.file)) {
    fail(command, ": ", found.file.string(), " is missing, and ", run.string(), " has no train.json and no checkpoint");
  } else if (fs::exists(run / kPreprocessFile)) {
    fields_from_json(opened.options, read_json(run / kPreprocessFile), (run / kPreprocessFile).string());
  }
  change_options(open, opened.options.train);
  prepare(opened.options.train, observer);
  opened.weights = found.file;
  const LmConfig network = read_lm_config(found.folder / "config.json");
  expect_inference_fits(command, size_of(network, 1), 1, opened.options.train,
                        static_cast<double>(fs::file_size(found.file)));
  opened.model = LanguageModel(network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(*opened.model));
  opened.model->to(device_of(opened.options.train.device));
  opened.model->eval();
  if (!is_mqar(opened.options)) opened.maybe_tokenizer = run_tokenizer(command, run, opened.model->config().vocab);
  return opened;
}

}  // namespace mhla::train
