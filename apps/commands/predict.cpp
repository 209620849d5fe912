// mhla predict: the classes of image files, by a trained classifier.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/flags.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/output.h"
#include "apps/cli/train_library.h"
#include "apps/commands.h"

namespace mhla::apps {
namespace {

struct PredictOptions {
  std::string run, weights = "model", device;
  std::vector<std::string> images;
  std::int64_t top = 5, batch = 0, threads = 0;
  bool json = false;
};

void print_image(const JsonValue& row, const Output& out) {
  std::string line = row.at("image").as_string() + ":";
  for (const JsonValue& one : row.at("top").items()) {
    const bool first = line.back() == ':';
    line += fmt::format("{} {} {:.2f} %", first ? "" : ",", one.at("name").as_string(),
                        100 * one.at("probability").as_double());
  }
  out.line(line);
}

int predict(const PredictOptions& o) {
  const Output out(o.json);
  const JsonValue request = JsonValue()
                                .set("command", "predict")
                                .set("run", o.run)
                                .set("images", json_list(o.images))
                                .set("top", o.top)
                                .set("weights", o.weights)
                                .set("batch", o.batch)
                                .set("device", o.device)
                                .set("threads", o.threads);
  return run_in_train_library(request, [&](const JsonValue& row, bool) {
    out.row(row);
    const std::string& kind = row.at("kind").as_string();
    if (kind == "warning") return complain(row.at("text").as_string());
    if (kind == "failed") return complain(row.at("error").as_string());
    print_image(row, out);
  });
}

}  // namespace

void add_predict(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("predict", "the classes of your own images, by a trained classifier");
  static PredictOptions o;
  command->add_option("--run", o.run, "folder of `mhla train classify` or `mhla convert`")
      ->required()
      ->type_name("DIR");
  command->add_option("images", o.images, "image files, folders of them (at any depth), - for stdin; repeatable")
      ->required()
      ->type_name("IMAGE");
  command->add_option("--top", o.top, "classes to show of each image")
      ->check(within(limits::kClasses))
      ->capture_default_str();
  command->add_option("--batch", o.batch, "images at a time (default: 32)")->check(within(limits::kBatch));
  add_run_flags(*command, o.weights, o.device);
  add_threads(*command, o.threads);
  command->add_flag("--json", o.json, "one JSON object per image on stdout, text on stderr");
  command->footer(
      "Images are prepared exactly as in `mhla eval classify`. One that cannot be read is named on stderr and\n"
      "the others go on. Exit code: 0, 1 if any image failed, 2 if there was nothing to do.");
  command->callback([&job] { job = [] { return predict(o); }; });
}

}  // namespace mhla::apps
