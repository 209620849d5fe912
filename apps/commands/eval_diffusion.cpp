// mhla eval diffusion: how well a denoiser removes noise from held-out images.
#include "apps/commands/eval_diffusion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"

namespace mhla::apps {
namespace {

void print_losses(const JsonValue& row, const Output& out) {
  out.line(fmt::format("{}: {} with {} attention, {} images{} at {} times", row.at("weights").as_string(),
                       row.at("model").as_string(), row.at("attention").as_string(), row.at("images").as_int(),
                       row.at("held_out").as_bool() ? " held out of the training set" : "", row.at("times").as_int()));
  const JsonValue* vb = row.find("vb");
  out.line(fmt::format(
      "denoising loss {:.5f} +- {:.5f}{}  {:.0f} images/s", row.at("mse").as_double(), row.at("mse_se").as_double(),
      vb == nullptr ? "" : fmt::format("  variance {:.5f} bits", vb->as_double()), row.at("images_per_s").as_double()));
  if (const JsonValue* against = row.find("against"))
    out.line(fmt::format("{}: {:.5f}; difference {:+.5f} +- {:.5f}", against->as_string(),
                         row.at("against_mse").as_double(), row.at("difference").as_double(),
                         row.at("difference_se").as_double()));
}

int run_eval_diffusion(const EvalDiffusionRequest& request, bool json) {
  const Output out(json);
  Rows rows(
      [&](const JsonValue& row) {
        out.row(row);
        if (!said_warning(row)) print_losses(row, out);
      },
      [&](const JsonValue& row) { out.progress(bar_text(row, 79)); });
  return run_engine(&Engine::eval_diffusion, request, rows);
}

}  // namespace

void add_eval_diffusion(CLI::App& eval, Job& job) {
  CLI::App* command =
      eval.add_subcommand("diffusion", "held-out denoising loss of a diffusion model, with its standard error");
  static EvalDiffusionRequest request;
  static bool json = false;
  const RequestFlags flags(*command, request);
  flags["run"].required()->type_name("DIR");
  flags["data"].type_name("SET");
  flags["against"].type_name("DIR");
  flags["batch"].check(within(limits::kBatch));
  check_open_flags(flags);
  add_json(*command, json, "one JSON object on stdout, text on stderr");
  command->callback([&job] { job = [] { return run_eval_diffusion(request, json); }; });
}

}  // namespace mhla::apps
