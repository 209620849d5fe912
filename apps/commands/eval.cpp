// mhla eval classify: a trained classifier on the test images of its data, or of other data with the same classes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/cli/train_screen.h"
#include "apps/commands.h"
#include "apps/commands/eval_diffusion.h"
#include "apps/commands/eval_images.h"
#include "apps/commands/eval_lm.h"
#include "apps/commands/eval_video.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

// Rows are true classes, columns predicted ones.
void print_confusion(const JsonValue& row, const Output& out) {
  const JsonValue::Array& names = row.at("classes").items();
  const JsonValue::Array& rows = row.at("confusion").items();
  constexpr std::size_t kMost = 20;
  if (rows.size() > kMost) {
    out.line(fmt::format("the confusion matrix of {} classes is in the output of --json", rows.size()));
    return;
  }
  std::size_t wide = 4;
  for (const JsonValue& name : names) wide = std::max(wide, std::min<std::size_t>(name.as_string().size(), 16));
  std::string head = fmt::format("{:>{}}", "true \\ said", wide + 3);
  for (std::size_t i = 0; i < rows.size(); ++i) head += fmt::format(" {:>6}", i);
  out.line(head);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string line = fmt::format("{:>2} {:>{}}", i, names[i].as_string().substr(0, 16), wide);
    for (const JsonValue& count : rows[i].items()) line += fmt::format(" {:>6}", count.as_int());
    out.line(line);
  }
}

void print_score(const JsonValue& row, const Output& out) {
  out.line(fmt::format("{}: {} with {} attention, {} images{}", row.at("weights").as_string(),
                       row.at("model").as_string(), row.at("attention").as_string(), row.at("images").as_int(),
                       row.at("held_out").as_bool() ? " held out of the training set" : ""));
  const bool five = row.at("classes").items().size() > 5;  // else all are right
  out.line(fmt::format("top-1 {:.2f} %{}  loss {:.4f}  {:.0f} images/s", 100 * row.at("top1").as_double(),
                       five ? fmt::format("  top-5 {:.2f} %", 100 * row.at("top5").as_double()) : "",
                       row.at("loss").as_double(), row.at("images_per_s").as_double()));
  print_confusion(row, out);
}

int run_eval_classify(const EvalClassifyRequest& request, bool json) {
  const Output out(json);
  Rows rows(
      [&](const JsonValue& row) {
        out.row(row);
        if (!said_warning(row)) print_score(row, out);
      },
      [&](const JsonValue& row) { out.progress(bar_text(row, 79)); });
  return run_engine(&Engine::eval_classify, request, rows);
}

}  // namespace

void add_eval(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("eval", "evaluate a trained model");
  command->require_subcommand(1);
  add_eval_lm(*command, job);
  add_eval_images(*command, job);
  add_eval_diffusion(*command, job);
  add_eval_video(*command, job);
  CLI::App* classify = command->add_subcommand("classify", "top-1, top-5, confusion matrix and speed of a classifier");
  static EvalClassifyRequest request;
  static bool json = false;
  const RequestFlags flags(*classify, request);
  flags["run"].required()->type_name("DIR");
  flags["data"].type_name("SET");
  flags["batch"].check(within(limits::kBatch));
  check_open_flags(flags);
  add_json(*classify, json, "one JSON object on stdout, text on stderr");
  classify->callback([&job] { job = [] { return run_eval_classify(request, json); }; });
}

}  // namespace mhla::apps
