// mhla inspect: what is in a safetensors file or in the folder of a model. Needs no LibTorch but to name the families
// of attention layers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <map>

#include "apps/cli/engine.h"
#include "apps/cli/flags.h"
#include "apps/commands.h"
#include "mhla/core/error.h"
#include "mhla/io/json_object.h"
#include "mhla/io/safetensors.h"

namespace mhla::apps {
namespace {

struct InspectOptions {
  std::string path;
  bool values = false, json = false;
};

struct Values {
  double least = INFINITY, most = -INFINITY, mean = 0.0;
  std::int64_t not_finite = 0;
};

Values values_of(const ConstView& view, std::int64_t count) {
  Values v;
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = load_f64(view.data, view.dtype, i);
    if (!std::isfinite(x)) {
      ++v.not_finite;
      continue;
    }
    v.least = std::min(v.least, x), v.most = std::max(v.most, x), sum += x;
  }
  v.mean = sum / static_cast<double>(std::max<std::int64_t>(1, count - v.not_finite));
  return v;
}

std::int64_t count_of(const Safetensors::Entry& entry) {
  std::int64_t count = 1;
  for (const std::int64_t size : entry.shape) count *= size;
  return count;
}

void list_tensors(const Safetensors& file, bool values, const Output& out, JsonValue& row) {
  std::vector<TextTable::Column> columns{{"tensor", -48}, {"dtype", -6}, {"shape", -20}};
  if (values) columns.insert(columns.end(), {{"least", 12}, {"most", 12}, {"mean", 12}, {"not finite", 10}});
  const TextTable table(out, columns);
  table.head();
  JsonValue tensors = JsonValue::array();
  std::int64_t parameters = 0, bytes = 0;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const Safetensors::Entry entry = file.entry(i);
    const std::int64_t count = count_of(entry);
    parameters += count, bytes += entry.bytes;
    JsonValue shape = JsonValue::array();
    for (const std::int64_t size : entry.shape) shape.push(size);
    JsonValue tensor;
    tensor.set("name", entry.name).set("dtype", name_of(entry.dtype)).set("shape", shape).set("bytes", entry.bytes);
    std::vector<std::string> cells{std::string(entry.name), std::string(name_of(entry.dtype)), shape_text(entry.shape)};
    if (values && is_float(entry.dtype) && count > 0) {
      const Values v = values_of(file.view(i), count);
      tensor.set("least", v.least).set("most", v.most).set("mean", v.mean).set("not_finite", v.not_finite);
      for (const double x : {v.least, v.most, v.mean}) cells.push_back(fmt::format("{:.4g}", x));
      cells.push_back(fmt::format("{}", v.not_finite));
    }
    table.row(cells);
    tensors.push(tensor);
  }
  out.line();
  out.line(
      fmt::format("{} tensors, {} numbers, {:.2f} MB", file.size(), parameters, static_cast<double>(bytes) * 1e-6));
  row.set("tensors", tensors).set("numbers", parameters).set("bytes", bytes);
  JsonValue metadata = JsonValue::object();
  for (const auto& [key, value] : file.metadata()) {
    out.line(fmt::format("metadata {}: {}", key, value.size() <= 200 ? value : value.substr(0, 200) + " ..."));
    metadata.set(key, value);
  }
  row.set("metadata", metadata);
}

void name_layers(const Safetensors& file, const Output& out, JsonValue& row) {
  bool any = false;
  std::vector<NamedShape> names;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const Safetensors::Entry entry = file.entry(i);
    any = any || entry.name.find("attn.") != std::string_view::npos || entry.name.find("qkv") != std::string_view::npos;
    names.push_back({std::string(entry.name), entry.shape});
  }
  if (!any) return;
  std::string reason;
  if (open_engine(reason) == nullptr) {
    out.line("attention layers are not named: " + reason);
    return;
  }
  JsonValue layers = JsonValue::array();
  std::map<std::string, std::vector<std::string>> by_family;
  for (const LayerName& layer : engine_result(&Engine::name_layers, names)) {
    layers.push(layer.json());
    by_family[layer.family].push_back(layer.prefix.empty() ? "the file" : layer.prefix);
  }
  for (const auto& [family, prefixes] : by_family) {
    out.line(fmt::format("{} attention layers {}: {}{}", prefixes.size(),
                         family.empty() ? "of no family that is known" : "of family " + family, prefixes.front(),
                         prefixes.size() > 1 ? " to " + prefixes.back() : ""));
  }
  row.set("layers", layers);
}

int inspect(const InspectOptions& o) {
  const Output out(o.json);
  std::filesystem::path file = o.path;
  JsonValue row;
  if (std::filesystem::is_directory(file)) {
    const std::filesystem::path config = file / "config.json";
    file /= "model.safetensors";
    if (!std::filesystem::exists(file)) fail("inspect: ", o.path, " has no model.safetensors");
    if (std::filesystem::exists(config)) {
      const JsonValue read = read_json_object(config);
      row.set("config", read);
      for (const JsonValue::Member& member : read.members())
        out.line(fmt::format("{:<14} {}", member.key, write_json(member.value)));
      out.line();
    }
  }
  row.set("file", file.string());
  const Safetensors weights = Safetensors::read(file);
  list_tensors(weights, o.values, out, row);
  name_layers(weights, out, row);
  out.row(row);
  return kDone;
}

}  // namespace

void add_inspect(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("inspect", "list what is in a safetensors file or in the folder of a model");
  static InspectOptions o;
  command->add_option("path", o.path, "the file or folder")->required()->type_name("PATH");
  command->add_flag("--values", o.values, "smallest, largest and mean value of every tensor");
  add_json(*command, o.json, "one JSON object on stdout, text on stderr");
  command->callback([&job] { job = [] { return inspect(o); }; });
}

}  // namespace mhla::apps
