// mhla sample: images from a diffusion or flow model, as PNG files, a contact sheet and an .npz. Videos are a command
// below it (sample_video.cpp).
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>

#include "apps/cli/axes.h"
#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"
#include "apps/commands.h"
#include "apps/commands/sample_video.h"
#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/io/prompts.h"

namespace mhla::apps {
namespace {

// What is no part of the request.
struct SampleFlags {
  std::string prompts_file, size, sheet;
  bool json = false;
};

// On a terminal a bar, otherwise a line every 10 seconds.
class SampleScreen {
 public:
  explicit SampleScreen(const Output& out) : out_(out), terminal_(isatty(STDERR_FILENO) != 0) {}
  void row(const JsonValue& row) {
    out_.row(row);
    if (said_warning(row) || row.at("kind").as_string() != "sampled") return;
    out_.progress_done();
    const std::int64_t images = row.at("images").as_int(), kept = row.at("kept").as_int();
    out_.line(fmt::format("{} with {} attention, {} in {} steps, guidance {:g}", row.at("model").as_string(),
                          row.at("attention").as_string(), row.at("sampler").as_string(), row.at("steps").as_int(),
                          row.at("guidance").as_double()));
    out_.line(fmt::format("images  {}: {} in {:.1f} s, {:.2f} a second{}",
                          (std::filesystem::path(row.at("out").as_string()) / "images").string(), images,
                          row.at("seconds").as_double(), row.at("images_per_s").as_double(),
                          kept > 0 ? fmt::format("; {} were there", kept) : ""));
    for (const char* file : {"sheet", "npz"})
      if (const JsonValue* path = row.find(file)) out_.line(fmt::format("{:<6}  {}", file, path->as_string()));
  }
  void progress(const JsonValue& row) {
    const std::string text = fmt::format("{}  {} left  {}/{} images  step {}/{}", bar_of(row.at("share").as_double()),
                                         clock_text(row.at("eta_s").as_double()), row.at("images").as_int(),
                                         row.at("of").as_int(), row.at("step").as_int(), row.at("steps").as_int());
    if (terminal_) return out_.progress(text);
    if (seconds_since(last_) < 10.0) return;
    last_ = std::chrono::steady_clock::now();
    fmt::print(stderr, "{}\n", text);
  }

 private:
  const Output& out_;
  bool terminal_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

int run_sample(SampleImagesRequest request, const SampleFlags& flags) {
  const Output out(flags.json);
  if (request.out.empty()) fail("sample: --out is required (mhla sample --help lists all flags)");
  if (request.run.empty() == request.model.empty()) fail("sample: expected one of --run and --model");
  if (!flags.size.empty()) request.size = parse_plane(flags.size, "sample: --size");
  if (!flags.sheet.empty()) request.sheet = parse_plane(flags.sheet, "sample: --sheet");
  if (!flags.prompts_file.empty()) read_prompts("sample", flags.prompts_file, request.prompts);
  outlive_readers();
  SampleScreen screen(out);
  Rows rows([&](const JsonValue& row) { screen.row(row); }, [&](const JsonValue& row) { screen.progress(row); });
  const int code = run_engine(&Engine::sample_images, request, rows);
  out.progress_done();
  return code;
}

}  // namespace

void add_sample(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("sample", "generate images with a diffusion or flow model, or videos");
  add_sample_video(*command, job);
  static SampleImagesRequest request;
  static SampleFlags own;
  const RequestFlags flags(*command, request, {{"prompts", "--prompt"}, {"per_class", "--per-class,--per-prompt"}});
  for (const char* field : {"run", "model", "vae", "text_encoder"}) flags[field].type_name("DIR");
  flags["out"].type_name("DIR");
  flags["classes"].delimiter(',')->type_name("0,1|all|NAME,...");
  flags.shown("per_class").check(whole_number(1, 1 << 26));
  flags["prompts"].type_name("TEXT")->take_all()->allow_extra_args(false);
  command->add_option("--prompts", own.prompts_file, "one prompt per line, or JSON lines with a field prompt")
      ->type_name("FILE");
  flags["negative"].type_name("TEXT");
  flags.shown("guidance");
  flags.shown("guidance_channels").type_name("3|all");
  flags["guidance_interval"].delimiter(',')->allow_extra_args(false)->type_name("A,B");
  flags["sampler"].check(one_of({"ancestral", "ddim", "dpm++", "euler", "unipc"}))->type_name("NAME");
  flags["time_grid"]
      .check(one_of({"wan-unipc", "wan-dpm", "mhla-dpm", "diffusers-unipc", "diffusers-euler", "linear"}))
      ->type_name("NAME");
  flags["steps"].check(whole_number(1, 1 << 20));
  flags.shown("seed").check(is_seed());
  command->add_option("--size", own.size, "size of an image in pixels, rows x columns (default: the model's)")
      ->type_name("N|RxC");
  command
      ->add_option("--sheet", own.sheet, "also write sheet.png: the first images in so many rows and columns, as 8x8")
      ->type_name("N|RxC");
  flags["weights"].check(one_of({"model", "ema", "best"}))->type_name("NAME");
  flags["batch"].check(within(limits::kBatch));
  flags["preview"].check(whole_number(0, 1 << 20))->type_name("STEPS");
  flags["device"].type_name("NAME");
  flags.shown("precision").check(one_of({"f32", "bf16"}));
  flags.shown("threads").check(whole_number(0, 1024));
  add_json(*command, own.json, "a JSON object for each image and one for the run on stdout, text on stderr");
  command->footer(
      "Images are DIR/images/NUMBER-classC.png, with their settings as text in the file; DIR/sample.json has them "
      "too.\n"
      "The noise depends on the seed, the number of the image and the step: a larger --per-class adds images and\n"
      "changes none. After an interruption, the same command with --resume makes the images that are missing.");
  command->callback([&job, command] {
    if (command->get_subcommands().empty()) job = [] { return run_sample(request, own); };  // not `sample video`
  });
}

}  // namespace mhla::apps
