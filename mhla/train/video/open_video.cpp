#include "mhla/train/video/open_video.h"

#include "mhla/core/error.h"
#include "mhla/train/memory.h"
#include "mhla/train/opening.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"
#include "mhla/train/trainer.h"
#include "mhla/train/weights.h"

namespace mhla::train {
namespace {

namespace fs = std::filesystem;

VideoOptions saved_video(const std::string& command, const fs::path& run) {
  const Run opened = Run::open(command, run);
  if (opened.task() != VideoOptions::kTask)
    fail(command, ": ", run.string(), " is a run of `mhla train ", opened.task(), "`, expected one of `mhla train ",
         VideoOptions::kTask, "`");
  VideoOptions options;
  options_from_json(options, opened.options(), (run / kOptionsFile).string());
  return located(options);
}

Wan loaded_video(const WanConfig& network, const RunWeights& found) {
  Wan model(network);
  read_tensors(Safetensors::read(found.file), found.prefix, tensors_of(*model));
  model->eval();
  return model;
}

std::optional<CaptionWords> words_in(const fs::path& folder) {
  if (!fs::exists(folder / kWordsFile)) return {};
  return CaptionWords::read(folder);
}

}  // namespace

VideoRun open_video_run(const std::string& command, const OpenOptions& open, const std::string& data,
                        Observer& observer) {
  const fs::path folder = open.run;
  const RunWeights found = find_weights(command, folder, open.weights, observer);
  VideoRun run;
  run.options = saved_video(command, folder);
  change_options(open, run.options.train);
  const bool other = !data.empty() && data != run.options.data;
  if (other) run.options.data = data, run.options.train_clips = 0, run.options.test_clips.reset();
  prepare(run.options.train, observer);
  run.network = read_wan_config(found.folder / "config.json");
  run.source = open_source(run.options, run.network.text_tokens, words_in(folder), /*unseen=*/other);
  const std::vector<std::int64_t> shape = run.source.shape();
  if (shape[0] != run.network.channels)
    fail(command, ": ", run.source.test->name(), " has ", shape[0], " channels, expected the ", run.network.channels,
         " of the model");
  expect_inference_fits(command, size_of(run.network, {shape[1], shape[2], shape[3]}), run.options.train.batch,
                        run.options.train, static_cast<double>(fs::file_size(found.file)));
  run.weights = found.file;
  run.model = loaded_video(run.network, found);
  run.model->to(device_of(run.options.train.device));
  return run;
}

Wan open_teacher(const VideoOptions& o, const WanConfig& student, const VideoSource& source, Observer& observer) {
  const std::string command = "train video: --teacher";
  const RunWeights found = find_weights(command, o.teacher, o.teacher_weights, observer);
  (void)saved_video(command, o.teacher);
  const WanConfig network = read_wan_config(found.folder / "config.json");
  if (network.channels != student.channels || network.vocab != student.vocab || network.text_dim != student.text_dim)
    fail(command, " is ", o.teacher, ", which has ", network.channels, " channels, a vocabulary of ", network.vocab,
         " and text of ", network.text_dim, ", expected ", student.channels, ", ", student.vocab, " and ",
         student.text_dim, " as the student has");
  const std::optional<CaptionWords> words = words_in(o.teacher);
  if (words && source.words && !(*words == *source.words))
    fail(command, " is ", o.teacher, ", which has other words in its ", kWordsFile, " than the student");
  at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
  const torch::Tensor state = generator.get_state();  // a network that is made draws from it
  Wan teacher = loaded_video(network, found);
  generator.set_state(state);
  return teacher;
}

}  // namespace mhla::train
