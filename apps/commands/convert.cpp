// mhla convert: weights under published names and back; image models of another size or attention.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <utility>

#include "apps/cli/axes.h"
#include "apps/cli/engine.h"
#include "apps/cli/limit_flags.h"
#include "apps/cli/request_flags.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/train/model_file.h"

namespace mhla::apps {
namespace {

struct ConvertOptions {
  ConvertRequest model;
  ConvertLayersRequest layers;
  std::string image;                // "14x14"
  std::vector<std::string> blocks;  // of each stage
  bool json = false;
};

std::array<std::int64_t, 2> plane_of(const std::string& text, const char* option, const Limit& limit) {  // "14x14"
  const auto [rows, columns] = parse_plane(text, option);
  for (const std::int64_t side : {rows, columns}) expect_within("convert", option, side, limit);
  return {rows, columns};
}

// Of a published file without a description of its model, only the attention layers can be converted.
bool is_model(const ConvertOptions& o) {
  return std::filesystem::is_directory(o.model.in) || !o.model.model.empty() || !o.model.config.empty();
}

int convert_model(const ConvertOptions& o, const Output& out) {
  ConvertRequest request = o.model;
  if (train::is_model_file(request.model)) request.config = std::exchange(request.model, "");  // described by a file
  if (!o.image.empty()) request.image = plane_of(o.image, "--image", limits::kImage);
  for (const std::string& stage : o.blocks) {
    const std::vector<std::int64_t> axes = parse_axes(stage, "--blocks");
    if (axes.size() != 3) {
      request.blocks.push_back(plane_of(stage, "--blocks", limits::kBlocks));
      continue;
    }
    for (const std::int64_t count : axes) expect_within("convert", "--blocks", count, limits::kBlocks);
    if (o.blocks.size() > 1) fail("convert: --blocks has three axes and several stages, expected one");
    request.blocks3 = {axes[0], axes[1], axes[2]};
  }
  const auto made = engine_result(&Engine::convert_model, request);
  out.row(fields_to_json(made));
  out.line(fmt::format("{}: {} with {} attention, {} parameters, {} names", made.out, made.model, made.attention,
                       made.parameters, made.names == "ours" ? "our" : made.names));
  return kDone;
}

int convert_layers(const ConvertOptions& o, const Output& out) {
  ConvertLayersRequest request = o.layers;
  request.in = o.model.in, request.out = o.model.out, request.to = o.model.to;
  const auto made = engine_result(&Engine::convert_layers, request);
  out.row(fields_to_json(made));
  out.line(fmt::format("{}: {} attention layers of {}, {} tensors", made.out, made.layers, made.family, made.tensors));
  return kDone;
}

int convert(const ConvertOptions& o) {
  const Output out(o.json);
  const ConvertRequest& m = o.model;
  const ConvertLayersRequest& l = o.layers;
  if (!std::filesystem::exists(m.in)) fail("convert: ", m.in, " does not exist");
  if (std::filesystem::exists(std::filesystem::path(m.out) / "train.json"))
    fail("convert: ", m.out, " is the folder of a run, expected another: its weights would be lost");
  if (!m.config.empty() && !m.model.empty()) fail("convert: --config and --model are given, expected one of them");
  const bool model = is_model(o);
  if (model && (!l.family.empty() || !l.widths.empty() || !l.prefix.empty()))
    fail("convert: --family, --widths and --prefix are for attention layers, not for a model");
  if (!model &&
      (!m.attention.empty() || !m.layers.empty() || !o.image.empty() || !o.blocks.empty() || m.to == "diffusers"))
    fail("convert: --attention, --image, --blocks and --to diffusers are for a model, expected a folder, --model or ",
         "--config");
  return model ? convert_model(o, out) : convert_layers(o, out);
}

}  // namespace

void add_convert(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand(
      "convert", "convert weights from and to published names, and models to another size or attention");
  static ConvertOptions o;
  const RequestFlags flags(*command, o.model, {{"in", "in"}, {"out", "out"}}, RequestFlags::Config::kNone);
  flags["in"].required()->type_name("PATH");
  flags["out"].required()->type_name("PATH");
  flags.shown("to").check(one_of({"ours", "published", "diffusers"}));
  flags["model"].type_name("NAME|FILE");
  flags["config"].type_name("FILE")->group("");
  flags["attention"].type_name("NAME");
  flags["layers"].type_name("all|every-3rd-kept|0,1,...");
  flags["variant"].check(one_of({"none", "cpe", "gate", "both"}))->type_name("NAME");
  flags["mix_init"].type_name("NAME");
  flags["weights"].check(one_of({"model", "ema", "best"}))->type_name("NAME");
  flags["dtype"].check(one_of({"f32", "f16", "bf16"}))->type_name("NAME");
  flags["classes"].check(within(limits::kClasses));
  command
      ->add_option("--image", o.image,
                   "image size to convert the model to; of a DiT the size of its samples, pixels or latents")
      ->type_name("N|RxC");
  command
      ->add_option(
          "--blocks", o.blocks,
          "MHLA's blocks per axis to convert the model to, one for each stage; of videos frames, rows, columns")
      ->type_name("N|RxC|FxRxC,...")
      ->delimiter(',');
  const RequestFlags layers(*command, o.layers, {}, RequestFlags::Config::kNone);
  layers["family"].type_name("NAME");
  layers["widths"].type_name("Q,K,V");
  layers["prefix"].type_name("TEXT");
  add_json(*command, o.json);
  command->callback([&job] { job = [] { return convert(o); }; });
}

}  // namespace mhla::apps
