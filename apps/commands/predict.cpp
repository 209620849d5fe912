// mhla predict: the classes of image files, by a trained classifier.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/commands.h"

namespace mhla::apps {
namespace {

void print_image(const JsonValue& row, const Output& out) {
  std::string line = row.at("image").as_string() + ":";
  for (const JsonValue& one : row.at("top").items()) {
    const bool first = line.back() == ':';
    line += fmt::format("{} {} {:.2f} %", first ? "" : ",", one.at("name").as_string(),
                        100 * one.at("probability").as_double());
  }
  out.line(line);
}

int run_predict(const PredictRequest& request, bool json) {
  const Output out(json);
  Rows rows(
      [&](const JsonValue& row) {
        out.row(row);
        if (said_warning(row)) return;
        if (row.at("kind").as_string() == "failed") return complain(row.at("error").as_string());
        print_image(row, out);
      },
      [](const JsonValue&) {});
  return run_engine(&Engine::predict, request, rows);
}

}  // namespace

void add_predict(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("predict", "the classes of your own images, by a trained classifier");
  static PredictRequest request;
  static bool json = false;
  const RequestFlags flags(*command, request, {{"images", "images"}});
  flags["run"].required()->type_name("DIR");
  flags["images"].required()->type_name("IMAGE");
  flags.shown("top").check(within(limits::kClasses));
  flags["batch"].check(within(limits::kBatch));
  check_open_flags(flags);
  add_json(*command, json, "one JSON object per image on stdout, text on stderr");
  command->footer(
      "Images are prepared exactly as in `mhla eval classify`. One that cannot be read is named on stderr and\n"
      "the others go on. Exit code: 0, or 2 if an image could not be read or there was none.");
  command->callback([&job] { job = [] { return run_predict(request, json); }; });
}

}  // namespace mhla::apps
