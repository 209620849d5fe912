// mhla export: a trained classifier for another runtime.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/flags.h"
#include "apps/cli/output.h"
#include "apps/cli/train_library.h"
#include "apps/commands.h"

namespace mhla::apps {
namespace {

struct ExportOptions {
  std::string run, out, to = "onnx", weights = "model";
  bool with_normalize = false, json = false;
};

int export_to(const ExportOptions& o) {
  const Output out(o.json);
  const JsonValue request = JsonValue()
                                .set("command", "export")
                                .set("run", o.run)
                                .set("out", o.out)
                                .set("with_normalize", o.with_normalize)
                                .set("weights", o.weights)
                                .set("batch", 0)
                                .set("device", "cpu")
                                .set("threads", 0);
  return run_in_train_library(request, [&](const JsonValue& row, bool) {
    out.row(row);
    if (row.at("kind").as_string() == "warning") return complain(row.at("text").as_string());
    const JsonValue& image = row.at("image");
    out.line(fmt::format("{}: {} with {} attention, opset {}, {:.1f} MB", row.at("out").as_string(),
                         row.at("model").as_string(), row.at("attention").as_string(), row.at("opset").as_int(),
                         static_cast<double>(row.at("bytes").as_int()) / 1e6));
    const JsonValue& how = row.at("preprocess");
    const bool pixels = row.at("input").as_string() == "pixels";
    out.line(fmt::format("input {} [batch, {}, {}, {}] f32, {}", row.at("input").as_string(),
                         row.at("channels").as_int(), image.at(std::size_t{0}).as_int(),
                         image.at(std::size_t{1}).as_int(),
                         pixels ? "values from 0 to 1"
                                : fmt::format("(x / 255 - mean) / std with mean {} and std {}",
                                              write_json(how.at("mean")), write_json(how.at("std")))));
    out.line(fmt::format("output logits [batch, {}] f32", row.at("classes").as_int()));
  });
}

}  // namespace

void add_export(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("export", "a trained classifier as a file for another runtime");
  static ExportOptions o;
  command->add_option("--to", o.to, "format: onnx")->check(one_of({"onnx"}))->capture_default_str();
  command->add_option("--run", o.run, "folder of `mhla train classify` or `mhla convert`")
      ->required()
      ->type_name("DIR");
  command->add_option("--out", o.out, "the file to write, *.onnx")->required()->type_name("FILE");
  command
      ->add_option("--weights", o.weights,
                   "model, ema: the running average of the weights, or best: those of the best evaluation")
      ->check(one_of({"model", "ema", "best"}))
      ->capture_default_str();
  command->add_flag("--with-normalize", o.with_normalize,
                    "put mean and deviation into the graph: its input is pixels from 0 to 1");
  command->add_flag("--json", o.json, "one JSON object on stdout, text on stderr");
  command->footer(
      "The graph has plain operators of opset 17 and a batch axis of any size. Models with mhla, linear and\n"
      "softmax attention can be exported.");
  command->callback([&job] { job = [] { return export_to(o); }; });
}

}  // namespace mhla::apps
