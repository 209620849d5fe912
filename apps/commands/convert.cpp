// mhla convert: weights under published names and back; image models of another size or attention.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "apps/cli/axes.h"
#include "apps/cli/flags.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/output.h"
#include "apps/cli/weights_library.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/train/model_file.h"

namespace mhla::apps {
namespace {

struct ConvertOptions {
  std::string in, out, to = "ours", config, model, attention, family, widths, prefix, image;
  std::vector<std::string> blocks;
  std::int64_t classes = 0;
  bool official = false, json = false;
};

JsonValue plane_of(const std::string& text, const char* option, const Limit& limit) {  // "14x14"
  const auto [rows, columns] = parse_plane(text, option);
  for (const std::int64_t side : {rows, columns}) expect_within("convert", option, side, limit);
  return JsonValue::array({rows, columns});
}

// A published file without a description of its model has attention layers alone to be converted.
bool is_model(const ConvertOptions& o) {
  return std::filesystem::is_directory(o.in) || !o.model.empty() || !o.config.empty();
}

JsonValue request_of(const ConvertOptions& o) {
  JsonValue request;
  request.set("command", "convert").set("in", o.in).set("out", o.out).set("to", o.to);
  const auto text = [&](const char* key, const std::string& value) {
    if (!value.empty()) request.set(key, value);
  };
  const bool described = train::is_model_file(o.model);  // by a file
  text("config", described ? o.model : o.config), text("model", described ? "" : o.model);
  text("attention", o.attention);
  text("family", o.family), text("widths", o.widths), text("prefix", o.prefix);
  if (o.classes > 0) request.set("classes", o.classes);
  if (o.official) request.set("official", true);
  if (!o.image.empty()) request.set("image", plane_of(o.image, "--image", limits::kImage));
  if (!o.blocks.empty()) {
    JsonValue blocks = JsonValue::array();
    for (const std::string& stage : o.blocks) blocks.push(plane_of(stage, "--blocks", limits::kBlocks));
    request.set("blocks", blocks);
  }
  if (!is_model(o)) request.set("layers", true);
  return request;
}

int convert(const ConvertOptions& o) {
  const Output out(o.json);
  if (!std::filesystem::exists(o.in)) fail("convert: ", o.in, " does not exist");
  if (std::filesystem::exists(std::filesystem::path(o.out) / "train.json"))
    fail("convert: ", o.out, " is the folder of a run, expected another: its weights would be lost");
  if (!o.config.empty() && !o.model.empty()) fail("convert: --config and --model are given, expected one of them");
  const bool model = is_model(o);
  if (model && (!o.family.empty() || !o.widths.empty() || !o.prefix.empty()))
    fail("convert: --family, --widths and --prefix are for attention layers, not for a model");
  if (!model && (!o.attention.empty() || !o.image.empty() || !o.blocks.empty()))
    fail("convert: --attention, --image and --blocks are for a model, expected a folder, --model or --config");
  for (const JsonValue& row : WeightsLibrary().run(request_of(o))) {
    out.row(row);
    if (row.contains("layers")) {
      out.line(fmt::format("{}: {} attention layers of {}, {} tensors", row.at("out").as_string(),
                           row.at("layers").as_int(), row.at("family").as_string(), row.at("tensors").as_int()));
    } else {
      out.line(fmt::format("{}: {} with {} attention, {} parameters, {} names", row.at("out").as_string(),
                           row.at("model").as_string(), row.at("attention").as_string(), row.at("parameters").as_int(),
                           row.at("names").as_string()));
    }
  }
  return kDone;
}

}  // namespace

void add_convert(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand(
      "convert", "convert weights from and to published names, and models to another size or attention");
  static ConvertOptions o;
  command->add_option("in", o.in, "a safetensors file, or the folder of a model")->required()->type_name("PATH");
  command->add_option("out", o.out, "a folder for a model under our names, otherwise a file")
      ->required()
      ->type_name("PATH");
  command->add_option("--to", o.to, "whose names to write: ours or published")
      ->check(one_of({"ours", "published"}))
      ->capture_default_str();
  command->add_option("--model", o.model, "for a file: the model it holds, by name or as a config.json")
      ->type_name("NAME|FILE");
  command->add_option("--config", o.config, "older spelling of --model FILE")->type_name("FILE")->group("");
  command
      ->add_option("--attention", o.attention,
                   "for a file: attention of --model; for a folder: turn a softmax model into mhla or linear")
      ->type_name("NAME");
  command->add_flag("--official", o.official, "for a file: --model as in the published code");
  command->add_option("--classes", o.classes, "for a file: classes of --model")->check(within(limits::kClasses));
  command->add_option("--image", o.image, "image size to convert the model to")->type_name("N|RxC");
  command->add_option("--blocks", o.blocks, "MHLA's blocks per axis to convert the model to, one for each stage")
      ->type_name("N|RxC,...")
      ->delimiter(',');
  command->add_option("--family", o.family, "attention layers: whose names they have, where that is ambiguous")
      ->type_name("NAME");
  command->add_option("--widths", o.widths, "attention layers: rows of q, k and v")->type_name("Q,K,V");
  command->add_option("--prefix", o.prefix, "attention layers: convert only the one whose names start with this")
      ->type_name("TEXT");
  add_json(*command, o.json);
  command->callback([&job] { job = [] { return convert(o); }; });
}

}  // namespace mhla::apps
