// mhla eval video: the held-out loss of a video model, and with a judge how its samples follow their captions.
#include "apps/commands/eval_video.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"

namespace mhla::apps {
namespace {

void print_judged(const JsonValue& judged, const Output& out) {
  std::string head = fmt::format("{:14}", "attribute"), real = fmt::format("{:14}", "real clips, %"),
              made = fmt::format("{:14}", "samples, %"), chance = fmt::format("{:14}", "by chance, %");
  for (const JsonValue& one : judged.at("attributes").items()) {
    head += fmt::format(" {:>9}", one.at("name").as_string());
    real += fmt::format(" {:>9.1f}", 100 * one.at("real").as_double());
    made += fmt::format(" {:>9.1f}", 100 * one.at("samples").as_double());
    chance += fmt::format(" {:>9.1f}", 100 * one.at("chance").as_double());
  }
  for (const std::string& line : {head, made, real, chance}) out.line(line);
  out.line(fmt::format("Frechet distance {:.3f} of {} samples (real clips {:.3f})", judged.at("frechet").as_double(),
                       judged.at("samples").as_int(), judged.at("frechet_real").as_double()));
  out.line(fmt::format("jitter {:.3f} px (real {:.3f}), change of mass {:.4f} (real {:.4f})",
                       judged.at("jitter").as_double(), judged.at("jitter_real").as_double(),
                       judged.at("flicker").as_double(), judged.at("flicker_real").as_double()));
}

void print_video_score(const JsonValue& row, const Output& out) {
  out.line(fmt::format("{}: {} with {} attention, {} clips{}", row.at("weights").as_string(),
                       row.at("model").as_string(), row.at("attention").as_string(), row.at("clips").as_int(),
                       row.at("held_out").as_bool() ? " held out of the training set" : ""));
  std::string times;
  for (const JsonValue& one : row.at("by_time").items())
    times += fmt::format("  s={:g} {:.5f}", one.at("s").as_double(), one.at("mse").as_double());
  out.line(fmt::format("loss {:.5f} +- {:.5f}{}  {:.1f} clips/s", row.at("mse").as_double(),
                       row.at("mse_se").as_double(), times, row.at("clips_per_s").as_double()));
  if (const JsonValue* against = row.find("against"))
    out.line(fmt::format("{}: {:.5f}; difference {:+.5f} +- {:.5f}", against->as_string(),
                         row.at("against_mse").as_double(), row.at("difference").as_double(),
                         row.at("difference_se").as_double()));
  if (const JsonValue* judged = row.find("judged")) print_judged(*judged, out);
}

int run_eval_video(const EvalVideoRequest& request, bool json) {
  const Output out(json);
  Rows rows(
      [&](const JsonValue& row) {
        out.row(row);
        if (!said_warning(row)) print_video_score(row, out);
      },
      [&](const JsonValue& row) { out.progress(bar_text(row, 79)); });
  return run_engine(&Engine::eval_video, request, rows);
}

}  // namespace

void add_eval_video(CLI::App& eval, Job& job) {
  CLI::App* command = eval.add_subcommand(
      "video", "held-out loss of a video model, with its standard error; with --judge also its samples");
  static EvalVideoRequest request;
  static bool json = false;
  const RequestFlags flags(*command, request);
  flags["run"].required()->type_name("DIR");
  flags["data"].type_name("SET");
  flags["against"].type_name("DIR");
  flags["judge"].type_name("DIR");
  flags["batch"].check(within(limits::kBatch));
  flags.shown("judge_steps").check(whole_number(1, 1000000));
  flags.shown("samples").check(whole_number(2, 1000000));
  flags.shown("steps").check(whole_number(1, 1000));
  flags.shown("guidance");
  flags.shown("seed");
  check_open_flags(flags);
  add_json(*command, json, "one JSON object on stdout, text on stderr");
  command->callback([&job] { job = [] { return run_eval_video(request, json); }; });
}

}  // namespace mhla::apps
