// mhla train: options from a config file and from flags, which override it. Everything that can be wrong with them is
// said before LibTorch is opened.
#include <CLI/CLI.hpp>
#include <fstream>

#include "apps/cli/engine.h"
#include "apps/cli/train_flags.h"
#include "apps/cli/train_screen.h"
#include "apps/commands.h"
#include "mhla/train/classify/classify_options.h"
#include "mhla/train/diffusion/diffusion_options.h"
#include "mhla/train/distributed/world.h"
#include "mhla/train/lm/lm_options.h"
#include "mhla/train/video/video_options.h"

namespace mhla::apps {
namespace {

struct TrainTask {
  const char *name, *help, *example;  // of --set
  std::set<std::string> also_free;    // options that may change when a run goes on
};

// The words of this process's command line, without --nproc and its number.
std::vector<std::string> words_without_nproc() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  bool number = false;
  for (std::string word; std::getline(file, word, '\0');) {
    const bool left_out = number || word == "--nproc" || word.rfind("--nproc=", 0) == 0;
    number = word == "--nproc";
    if (!left_out) words.push_back(word);
  }
  return words;
}

constexpr std::int64_t kMostProcesses = 1024;

// Whether this process only starts others.
bool launches(const TrainFlags& given, const distributed::World& world) {
  if (given.nproc == 0) return false;
  if (given.nproc < 1 || given.nproc > kMostProcesses)
    fail(given.task, ": --nproc is ", given.nproc, ", expected 1 to ", kMostProcesses);
  if (world.started) fail(given.task, ": --nproc is given, but torchrun has started this process already");
  return given.nproc > 1;
}

template <class Options>
void add_task(CLI::App& train, Job& job, const TrainTask& task,
              Outcome (*Engine::*function)(const TrainRequest<Options>&, train::Observer&)) {
  CLI::App* command = train.add_subcommand(task.name, task.help);
  static TrainFlags given;  // one for each Options
  static TrainRequest<Options> request;
  given.task = std::string("train ") + task.name;
  add_train_flags(*command, given, request, task.example);
  command->callback([&job, free = task.also_free, function] {
    job = [free, function] {
      const Output out(given.json);
      outlive_readers();  // `| tee` dies of the same Ctrl-C that is to save the run
      const distributed::World world = distributed::world_from_environment();
      if (world.restarts > 0) request.resume = true, request.overwrite = false;  // torchrun --max-restarts
      request.options = train_options_of(given, request, free);
      if (launches(given, world)) {
        Rows none([](const JsonValue&) {}, [](const JsonValue&) {});
        return run_engine(&Engine::launch, {given.nproc, words_without_nproc()}, none);
      }
      TrainScreen screen(out);
      Rows rows([&](const JsonValue& row) { screen.show(row, /*progress=*/false); },
                [&](const JsonValue& row) { screen.show(row, /*progress=*/true); });
      const int code = run_engine(function, request, rows);
      out.progress_done();
      return code;
    };
  });
}

}  // namespace

void add_train(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("train", "train a model");
  command->require_subcommand(1);
  add_task<train::ClassifyOptions>(*command, job,
                                   {"classify",
                                    "train an image classifier, with any attention of the zoo",
                                    "lepe=5 or image=[32,32]",
                                    {"data", "max_damaged"}},
                                   &Engine::train_classify);
  add_task<train::LmOptions>(*command, job,
                             {"lm",
                              "train a language model, with any causal attention of the zoo",
                              "short_conv=4 or chunk=128",
                              {"check_tokens", "data", "eval_tokens", "recompute", "tokens"}},
                             &Engine::train_lm);
  add_task<train::DiffusionOptions>(
      *command, job,
      {"diffusion",
       "train a diffusion transformer on images with classes or captions, with any attention of the zoo",
       "image=[64,48] or blocks=[8,8]",
       {"data", "max_damaged", "sample_every", "sample_steps", "sample_columns", "sample_guidance", "sample_prompts",
        "text_encoder", "vae"}},
      &Engine::train_diffusion);
  add_task<train::VideoOptions>(
      *command, job,
      {"video",
       "train a text-to-video transformer by flow matching, with softmax, MHLA or linear attention, or a hybrid",
       "blocks=[4,4,4] or gate=silu",
       {"data", "max_damaged", "recompute", "sample_every", "sample_steps", "sample_clips", "sample_guidance"}},
      &Engine::train_video);
}

}  // namespace mhla::apps
