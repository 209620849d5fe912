// mhla sample video: a video from a prompt, with a Wan transformer of any attention.
#include "apps/commands/sample_video.h"

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
#include "mhla/core/error.h"
#include "mhla/core/seconds.h"
#include "mhla/io/file.h"
#include "mhla/io/json_lines.h"
#include "mhla/io/prompts.h"

namespace mhla::apps {
namespace {

struct SampleVideoFlags {
  std::string prompts_file, size;
  bool json = false;
};

// The plan and what was written as lines; on a terminal a bar, otherwise a line every 10 seconds.
class VideoScreen {
 public:
  explicit VideoScreen(const Output& out) : out_(out), terminal_(isatty(STDERR_FILENO) != 0) {}
  void row(const JsonValue& row) {
    out_.row(row);
    if (said_warning(row)) return;
    out_.progress_done();
    const std::string& kind = row.at("kind").as_string();
    if (kind == "plan")
      for (const JsonValue& line : row.at("lines").items()) out_.line(line.as_string());
    if (kind == "video")
      out_.line(fmt::format("video    {}: {} frames of {}, denoised in {:.1f} s, decoded in {:.1f} s",
                            row.at("out").as_string(), row.at("frames").as_int(), row.at("size").as_string(),
                            row.at("denoise_s").as_double(), row.at("decode_s").as_double()));
    if (kind == "sampled") {
      const std::int64_t kept = row.at("kept").as_int();
      out_.line(fmt::format("{} with {} attention, {} in {} steps, guidance {:g}: {} in {:.1f} s{}",
                            row.at("model").as_string().empty() ? "wan" : row.at("model").as_string(),
                            row.at("attention").as_string(), row.at("sampler").as_string(), row.at("steps").as_int(),
                            row.at("guidance").as_double(), row.at("videos").as_int(), row.at("seconds").as_double(),
                            kept > 0 ? fmt::format("; {} were there", kept) : ""));
    }
  }
  void progress(const JsonValue& row) {
    const std::string left =
        row.contains("eta_s") ? fmt::format("  {} left", clock_text(row.at("eta_s").as_double())) : std::string();
    const std::int64_t videos = row.at("videos").as_int();
    const std::string text =
        fmt::format("{}{}  {} {}/{}{}", bar_of(row.at("share").as_double()), left, row.at("kind").as_string(),
                    row.at("step").as_int(), row.at("steps").as_int(),
                    videos > 1 ? fmt::format("  video {}/{}", row.at("video").as_int(), videos) : std::string());
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

// A JSON line may have a negative prompt and a seed of its own.
void take_prompts_file(const std::string& path, SampleVideoRequest& request) {
  if (std::filesystem::path(path).extension() != ".jsonl") return read_prompts("sample video", path, request.prompts);
  request.negatives.resize(request.prompts.size()), request.seeds.resize(request.prompts.size());
  const std::vector<std::byte> bytes = read_file(path, std::uint64_t{1} << 30);
  read_json_lines({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path,
                  [&](const std::string& name, const JsonValue& row) {
                    if (!row.is_object()) fail(name, ": expected an object with a string \"prompt\"");
                    std::optional<std::string> prompt, negative;
                    std::optional<std::int64_t> seed;
                    for (const JsonValue::Member& member : row.members()) {
                      labelled(name + ": " + member.key, [&] {
                        if (member.key == "prompt") prompt = member.value.as_string();
                        if (member.key == "negative") negative = member.value.as_string();
                        if (member.key == "seed") seed = member.value.as_int();
                      });
                    }
                    if (!prompt) fail(name, ": expected an object with a string \"prompt\"");
                    if (seed && *seed < 0) fail(name, ": seed is ", *seed, ", expected 0 or more");
                    request.prompts.push_back(*prompt);
                    request.negatives.push_back(negative), request.seeds.push_back(seed);
                  });
  if (request.prompts.empty()) fail("sample video: ", path, " has no prompts");
}

int run_sample_video(SampleVideoRequest request, const SampleVideoFlags& flags) {
  const Output out(flags.json);
  if (!flags.size.empty()) request.size = parse_plane(flags.size, "sample video: --size");
  if (!flags.prompts_file.empty()) take_prompts_file(flags.prompts_file, request);
  outlive_readers();
  VideoScreen screen(out);
  Rows rows([&](const JsonValue& row) { screen.row(row); }, [&](const JsonValue& row) { screen.progress(row); });
  const int code = run_engine(&Engine::sample_video, request, rows);
  out.progress_done();
  return code;
}

}  // namespace

void add_sample_video(CLI::App& sample, Job& job) {
  CLI::App* command = sample.add_subcommand("video", "generate videos with a Wan transformer");
  static SampleVideoRequest request;
  static SampleVideoFlags own;
  const RequestFlags flags(*command, request, {{"prompts", "--prompt"}});
  flags["model"].required()->type_name("DIR");
  flags["out"].required()->type_name("FILE");
  for (const char* field : {"vae", "text_encoder"}) flags[field].type_name("PATH");
  for (const char* field : {"text_cache", "noise", "save_latents", "resume"}) flags[field].type_name("FILE");
  flags["prompts"].type_name("TEXT")->take_all()->allow_extra_args(false);
  command
      ->add_option("--prompts", own.prompts_file,
                   "one prompt per line, or JSON lines with prompt and, if wanted, negative and seed")
      ->type_name("FILE");
  flags["negative"].type_name("TEXT");
  command
      ->add_option("--size", own.size,
                   "size of a frame in pixels, rows x columns (default: 480x832, or as in training)")
      ->type_name("N|RxC");
  flags["weights"].check(one_of({"model", "ema"}))->type_name("NAME");
  flags["frames"].check(whole_number(1, 1 << 16));
  flags.shown("fps");
  flags.shown("sampler").check(one_of({"unipc", "dpm++", "euler"}));
  flags["time_grid"]
      .check(one_of({"wan-unipc", "wan-dpm", "mhla-dpm", "diffusers-unipc", "diffusers-euler", "linear"}))
      ->type_name("NAME");
  flags.shown("steps").check(whole_number(1, 1 << 20));
  flags.shown("guidance");
  flags.shown("seed").check(is_seed());
  flags["preview"].check(whole_number(0, 1 << 20))->type_name("STEPS");
  flags["max_memory"].type_name("SIZE");
  flags["device"].type_name("NAME");
  flags.shown("precision").check(one_of({"f32", "bf16"}));
  flags.shown("threads").check(whole_number(0, 1024));
  add_json(*command, own.json, "JSON objects for the plan and each video on stdout, text on stderr");
  command->footer(
      "DIR is a model as published: a pipeline of diffusers (transformer/, vae/, text_encoder/, tokenizer/), or the\n"
      "original folder with its .pth files turned into .safetensors. A run of `mhla train video` on clips needs no "
      "other\n"
      "files. Prompt, seed and settings are written into the video. The noise depends on the seed only. With "
      "--prompts,\n"
      "videos that are there already are skipped.");
  command->callback([&job] { job = [] { return run_sample_video(request, own); }; });
}

}  // namespace mhla::apps
