// mhla convert: weights under published names and back; image models of another size or attention.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "apps/cli/limit_flags.h"
#include "apps/cli/output.h"
#include "apps/cli/weights_library.h"
#include "apps/commands.h"
#include "mhla/core/error.h"

namespace mhla::apps {
namespace {

struct ConvertOptions {
  std::string in, out, to = "ours", config, model, attention, family, widths, prefix, image;
  std::vector<std::string> blocks;
  std::int64_t classes = 0;
  bool official = false, json = false;
};

JsonValue parse_sides(const std::string& text, const char* option, const Limit& limit) {  // "14x14"
  std::int64_t rows = 0, columns = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%ldx%ld%c", &rows, &columns, &rest) != 2)
    fail("convert: ", option, " is '", text, "', expected rows and columns as in 384x384");
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
  text("config", o.config), text("model", o.model), text("attention", o.attention);
  text("family", o.family), text("widths", o.widths), text("prefix", o.prefix);
  if (o.classes > 0) request.set("classes", o.classes);
  if (o.official) request.set("official", true);
  if (!o.image.empty()) request.set("image", parse_sides(o.image, "--image", limits::kImage));
  if (!o.blocks.empty()) {
    JsonValue blocks = JsonValue::array();
    for (const std::string& stage : o.blocks) blocks.push(parse_sides(stage, "--blocks", limits::kBlocks));
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
  CLI::App* command = app.add_subcommand("convert", "weights: published names in and out, models of another size");
  static ConvertOptions o;
  command->add_option("in", o.in, "a safetensors file, or the folder of a model")->required()->type_name("PATH");
  command->add_option("out", o.out, "a folder for a model under our names, a file otherwise")
      ->required()
      ->type_name("PATH");
  command->add_option("--to", o.to, "whose names: ours or published")->check(CLI::IsMember({"ours", "published"}));
  command->add_option("--model", o.model, "the file is a model of this name")->type_name("NAME");
  command->add_option("--config", o.config, "the file is a model of this configuration")->type_name("FILE");
  command
      ->add_option("--attention", o.attention, "of --model; a softmax model in a folder becomes one of mhla or linear")
      ->type_name("NAME");
  command->add_flag("--official", o.official, "--model as the published code has it");
  command->add_option("--classes", o.classes, "of --model")->check(within(limits::kClasses));
  command->add_option("--image", o.image, "image size to carry the model over to")->type_name("ROWSxCOLUMNS");
  command->add_option("--blocks", o.blocks, "MHLA's blocks to carry it over to, once per stage")
      ->type_name("ROWSxCOLUMNS");
  command->add_option("--family", o.family, "attention layers: whose names, where they do not say")->type_name("NAME");
  command->add_option("--widths", o.widths, "attention layers: rows of q, k and v")->type_name("Q,K,V");
  command->add_option("--prefix", o.prefix, "attention layers: only the one whose names start so")->type_name("TEXT");
  command->add_flag("--json", o.json, "one JSON object per line on stdout, text on stderr");
  command->callback([&job] { job = [] { return convert(o); }; });
}

}  // namespace mhla::apps
