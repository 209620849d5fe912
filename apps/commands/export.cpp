// mhla export: a trained classifier for another runtime.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "apps/cli/engine.h"
#include "apps/cli/request_flags.h"
#include "apps/commands.h"

namespace mhla::apps {
namespace {

void print_export(const JsonValue& row, const Output& out) {
  const JsonValue& image = row.at("image");
  out.line(fmt::format("{}: {} with {} attention, opset {}, {:.1f} MB", row.at("out").as_string(),
                       row.at("model").as_string(), row.at("attention").as_string(), row.at("opset").as_int(),
                       static_cast<double>(row.at("bytes").as_int()) / 1e6));
  const JsonValue& how = row.at("preprocess");
  const bool pixels = row.at("input").as_string() == "pixels";
  out.line(fmt::format("input {} [batch, {}, {}, {}] f32, {}", row.at("input").as_string(), row.at("channels").as_int(),
                       image.at(std::size_t{0}).as_int(), image.at(std::size_t{1}).as_int(),
                       pixels ? "values from 0 to 1"
                              : fmt::format("(x / 255 - mean) / std with mean {} and std {}",
                                            write_json(how.at("mean")), write_json(how.at("std")))));
  out.line(fmt::format("output logits [batch, {}] f32", row.at("classes").as_int()));
}

int run_export(const ExportRequest& request, bool json) {
  const Output out(json);
  Rows rows(
      [&](const JsonValue& row) {
        out.row(row);
        if (!said_warning(row)) print_export(row, out);
      },
      [](const JsonValue&) {});
  return run_engine(&Engine::export_model, request, rows);
}

}  // namespace

void add_export(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("export", "a trained classifier as a file for another runtime");
  static ExportRequest request;
  static bool json = false;
  const RequestFlags flags(*command, request);
  flags.shown("to").check(one_of({"onnx"}));
  flags["run"].required()->type_name("DIR");
  flags["out"].required()->type_name("FILE");
  flags.shown("weights").check(one_of({"model", "ema", "best"}));
  add_json(*command, json, "one JSON object on stdout, text on stderr");
  command->footer(
      "The graph has plain operators of opset 17 and a batch axis of any size. Models with mhla, linear and\n"
      "softmax attention can be exported.");
  command->callback([&job] { job = [] { return run_export(request, json); }; });
}

}  // namespace mhla::apps
