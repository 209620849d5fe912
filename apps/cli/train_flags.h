// The flags of `mhla train TASK`, from the fields of the task's options (io/fields.h): a config file, flags that win
// over it, and with --resume what the run was started with.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/cli/request_flags.h"
#include "apps/engine/requests.h"
#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/fields.h"
#include "mhla/train/model_file.h"
#include "mhla/train/origin.h"
#include "mhla/train/runs/options_file.h"

namespace mhla::apps {

// What was given, before it becomes options.
struct TrainFlags {
  std::string task;  // "train classify": opens errors
  std::string config;
  std::vector<std::string> network;          // KEY=VALUE
  std::map<std::string, std::string> flags;  // field -> text
  std::map<std::string, bool> switches;      // field of type bool -> value
  bool json = false;
  std::int64_t nproc = 0;
};

template <class Field>
constexpr bool is_text = std::is_same_v<Field, std::string> || std::is_same_v<Field, std::optional<std::string>>;
template <class Field>
constexpr bool is_switch = std::is_same_v<Field, bool> || std::is_same_v<Field, std::optional<bool>>;
template <class Field>
constexpr bool is_whole = std::is_same_v<Field, std::int64_t> || std::is_same_v<Field, std::optional<std::int64_t>>;

// One flag for each field, but "network", which has --set; `example` of it.
template <class Options>
void add_train_flags(CLI::App& command, TrainFlags& given, TrainRequest<Options>& request, const char* example) {
  const RequestFlags own(command, request, {}, RequestFlags::Config::kNone);
  own["out"].required()->type_name("DIR");
  command.add_option("--config", given.config, "JSON file with options; flags override it")->type_name("FILE");
  command.add_option("--set", given.network, fmt::format("a field of the model, such as {}; repeatable", example))
      ->type_name("KEY=VALUE");
  command.add_flag("--json", given.json, "the rows of the log as JSON on stdout, text on stderr");
  command.add_option("--nproc", given.nproc, "start so many processes on this machine, which train together")
      ->type_name("N");
  Options defaults;
  Options::fields(defaults, [&](const char* name, auto& field, const char* help) {
    using Field = std::decay_t<decltype(field)>;
    const std::string field_name = name, flag = flag_of(name);
    if constexpr (std::is_same_v<Field, JsonValue>) {
      return;
    } else if constexpr (is_switch<Field>) {
      std::string text = help;
      if constexpr (std::is_same_v<Field, bool>) text += field ? " [on]" : " [off]";
      command.add_flag_function(
          flag + ",!--no" + flag.substr(1),
          [&given, field_name](std::int64_t n) { given.switches[field_name] = n > 0; }, text);
    } else {
      const std::string start = write_json(fields::to_json(field));
      const std::string text = start == "null" || start == "\"\"" ? help : fmt::format("{} [{}]", help, start);
      const char* type = is_text<Field> ? "NAME" : "N";
      command
          .add_option_function<std::string>(
              flag, [&given, field_name](const std::string& value) { given.flags[field_name] = value; }, text)
          ->type_name(type);
    }
  });
}

// Text as the field's type: a string is taken as it is, everything else is JSON.
template <class Options>
void set_field(Options& options, const std::string& task, const std::string& name, const std::string& text) {
  Options::fields(options, [&](const char* known, auto& field, const char*) {
    if (name != known) return;
    using Field = std::decay_t<decltype(field)>;
    if constexpr (is_text<Field>) {
      field = text;
    } else {
      try {
        fields::from_json(parse_json(text, "value"), field);
      } catch (const Error&) {
        fail(task, ": ", flag_of(name), " is '", text, "', expected a ", is_whole<Field> ? "whole " : "", "number");
      }
    }
  });
}

// KEY=VALUE for the network, VALUE as JSON where it is JSON and as text otherwise.
inline void set_network(JsonValue& network, const std::string& task, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) fail(task, ": --set is '", text, "', expected KEY=VALUE");
  const std::string value = text.substr(equals + 1);
  try {
    network.set(text.substr(0, equals), parse_json(value, "value"));
  } catch (const Error&) {
    network.set(text.substr(0, equals), value);
  }
}

// The options of a config file. Errors of its shape name the file and the key.
inline JsonValue read_config(const std::string& file) {
  JsonValue config = read_json(file);
  if (!config.is_object()) fail(file, ": is no object, expected one of options");
  const JsonValue* network = config.find("network");
  if (network != nullptr && !network->is_object())
    fail(file, ": 'network': is no object, expected fields of the model");
  return config;
}

// `free`: what may change when a run goes on: how long, how often, where, but not what it learns.
template <class Options>
void expect_same_run(const Options& now, const Options& before, const std::string& task, const std::string& file,
                     const std::set<std::string>& free) {
  const JsonValue a = fields_to_json(now), b = fields_to_json(before);
  for (const JsonValue::Member& member : a.members()) {
    const JsonValue& old = b.at(member.key);
    if (free.count(member.key) == 0 && !(member.value == old))
      fail(task, ": ", member.key, " is ", write_json(member.value), ", but the run was started with ", write_json(old),
           " (", file, ")");
  }
}

// The model that the flags or else the config file name; empty: neither does.
inline std::string given_model(const TrainFlags& given, const JsonValue& config) {
  if (const auto flag = given.flags.find("model"); flag != given.flags.end()) return flag->second;
  const JsonValue* model = config.find("model");
  return model != nullptr && model->is_string() ? model->as_string() : "";
}

// Whether the --init of a run that goes on is what it was started with: the same place, or a file of the same bytes.
template <class Options>
bool is_init_of(const std::string& init, const Options& before) {
  if (before.train.init.empty()) return false;
  const JsonValue *place = before.origin.find("init"), *sum = before.origin.find("init_crc32c");
  if (init == before.train.init || (place != nullptr && train::origin::absolute_form(init) == place->as_string()))
    return true;
  const std::filesystem::path folder = init, file = folder / (before.train.init_weights + ".safetensors");
  const std::filesystem::path weights = std::filesystem::is_directory(folder) ? file : folder;
  return sum != nullptr && std::filesystem::is_regular_file(weights) && file_crc32c(weights) == sum->as_uint();
}

// The network of weights to start from, where neither flags nor a config file name a model.
template <class Options>
void take_network_of_init(Options& options, const std::string& given_model) {
  const std::filesystem::path config = std::filesystem::path(options.train.init) / "config.json";
  if (!options.train.init.empty() && given_model.empty() && std::filesystem::exists(config))
    options.model = config.string();
}

// `also_free` of the task, besides what is free in every run.
template <class Options>
Options train_options_of(const TrainFlags& given, const TrainRequest<Options>& request,
                         const std::set<std::string>& also_free) {
  Options options, before;
  const std::filesystem::path saved = std::filesystem::path(request.out) / "train.json";
  const bool goes_on = request.resume && std::filesystem::exists(saved);
  if (goes_on) {
    train::options_from_json(options, read_json(saved), saved.string());
    before = options;
  }
  const JsonValue config = given.config.empty() ? JsonValue::object() : read_config(given.config);
  const bool by_file = goes_on && train::is_model_file(given_model(given, config));
  if (by_file) {  // the file says all of it again; the checkpoint is compared with what it describes
    const Options fresh;
    options.attention = fresh.attention, options.official = fresh.official, options.network = fresh.network;
  }
  train::options_from_json(options, config, given.config);
  for (const std::string& name : Options::paths()) {
    const bool anew = given.flags.count(name) != 0 || (config.contains(name) && !config.contains("origin"));
    if (anew) options.origin = train::without_origin(options.origin, name);
  }
  for (const auto& [name, text] : given.flags) set_field(options, given.task, name, text);
  if (const auto init = given.flags.find("init"); goes_on && init != given.flags.end()) {
    if (!is_init_of(init->second, before))
      fail(given.task, ": --init is ", init->second, ", but the run was started from ",
           before.train.init.empty() ? "random weights" : before.train.init, " (", saved.string(), ")");
    options.train.init = before.train.init;
    if (const JsonValue* place = before.origin.find("init")) options.origin.set("init", *place);
  }
  if (!goes_on) take_network_of_init(options, given_model(given, config));
  for (const auto& [name, on] : given.switches) set_field(options, given.task, name, on ? "true" : "false");
  for (const std::string& text : given.network) set_network(options.network, given.task, text);
  if (!goes_on && options.network.contains("model"))  // it would have another name and be the same
    fail(given.task, ": network has model ", write_json(options.network.at("model")),
         ", expected none: model is chosen by --model");
  if (given.flags.count("epochs") != 0 && given.flags.count("max_steps") == 0) options.train.max_steps = 0;
  std::set<std::string> free = also_free;
  free.insert({"epochs", "max_steps", "threads", "checkpoint_every", "checkpoint_minutes", "keep", "keep_best",
               "log_every", "eval_every", "eval_steps", "device", "cuda_graph", "shard_optimizer", "timeout",
               "context_parallel", "context_method", "origin"});
  if (by_file) free.insert({"model", "attention", "official", "network"});
  if (goes_on) expect_same_run(options, before, given.task, saved.string(), free);
  return options;
}

}  // namespace mhla::apps
