// mhla train classify: options from a config file and from flags, which win. Everything that can be wrong with them is
// said before LibTorch is opened.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <set>

#include "apps/commands.h"
#include "apps/train_library.h"
#include "apps/train_screen.h"
#include "mhla/core/error.h"
#include "mhla/train/classify_options.h"

namespace mhla::apps {
namespace {

using train::ClassifyOptions;

// What was given, before it becomes options.
struct Given {
  std::string out, config;
  std::vector<std::string> network;          // KEY=VALUE
  std::map<std::string, std::string> flags;  // field -> text
  std::map<std::string, bool> switches;      // field of type bool -> value
  bool resume = false, json = false;
};

std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

template <class Field>
constexpr bool is_text = std::is_same_v<Field, std::string> || std::is_same_v<Field, std::optional<std::string>>;
template <class Field>
constexpr bool is_whole = std::is_same_v<Field, std::int64_t> || std::is_same_v<Field, std::optional<std::int64_t>>;

// One flag for each field, but "network", which has --set.
void add_fields(CLI::App& command, Given& given) {
  ClassifyOptions defaults;
  ClassifyOptions::fields(defaults, [&](const char* name, auto& field, const char* help) {
    using Field = std::decay_t<decltype(field)>;
    const std::string field_name = name, flag = flag_of(name);
    if constexpr (std::is_same_v<Field, JsonValue>) {
      return;
    } else if constexpr (std::is_same_v<Field, bool>) {
      command.add_flag_function(
          flag + ",!--no" + flag.substr(1),
          [&given, field_name](std::int64_t n) { given.switches[field_name] = n > 0; }, help);
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
void set_field(ClassifyOptions& options, const std::string& name, const std::string& text) {
  ClassifyOptions::fields(options, [&](const char* known, auto& field, const char*) {
    if (name != known) return;
    using Field = std::decay_t<decltype(field)>;
    if constexpr (is_text<Field>) {
      field = text;
    } else {
      try {
        fields::from_json(parse_json(text, "value"), field);
      } catch (const Error&) {
        fail("train classify: ", flag_of(name), " is '", text, "', expected a ", is_whole<Field> ? "whole " : "",
             "number");
      }
    }
  });
}

// KEY=VALUE for the network, VALUE as JSON where it is JSON and as text otherwise.
void set_network(JsonValue& network, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) fail("train classify: --set is '", text, "', expected KEY=VALUE");
  const std::string value = text.substr(equals + 1);
  try {
    network.set(text.substr(0, equals), parse_json(value, "value"));
  } catch (const Error&) {
    network.set(text.substr(0, equals), value);
  }
}

// What may change when a run goes on: how long, how often, where, but not what it learns.
void expect_same_run(const ClassifyOptions& now, const ClassifyOptions& before, const std::string& file) {
  static const std::set<std::string> free = {"epochs",    "max_steps",  "threads", "checkpoint_every", "keep",
                                             "log_every", "eval_every", "device",  "max_damaged"};
  const JsonValue a = fields_to_json(now), b = fields_to_json(before);
  for (const JsonValue::Member& member : a.members()) {
    const JsonValue& old = b.at(member.key);
    if (free.count(member.key) == 0 && !(member.value == old))
      fail("train classify: ", member.key, " is ", write_json(member.value), ", but the run was started with ",
           write_json(old), " (", file, ")");
  }
}

ClassifyOptions options_of(const Given& given) {
  ClassifyOptions options, before;
  const std::filesystem::path saved = std::filesystem::path(given.out) / "train.json";
  const bool goes_on = given.resume && std::filesystem::exists(saved);
  if (goes_on) {
    fields_from_json(options, read_json(saved), saved.string());
    before = options;
  }
  if (!given.config.empty()) fields_from_json(options, read_json(given.config), given.config);
  for (const auto& [name, text] : given.flags) set_field(options, name, text);
  for (const auto& [name, on] : given.switches) set_field(options, name, on ? "true" : "false");
  for (const std::string& text : given.network) set_network(options.network, text);
  if (given.flags.count("epochs") != 0 && given.flags.count("max_steps") == 0) options.train.max_steps = 0;
  if (goes_on) expect_same_run(options, before, saved.string());
  return options;
}

}  // namespace

void add_train(CLI::App& app, Job& job) {
  CLI::App* command = app.add_subcommand("train", "train a model");
  command->require_subcommand(1);
  CLI::App* classify = command->add_subcommand("classify", "an image classifier, with any attention of the zoo");
  static Given given;
  classify->add_option("--out", given.out, "folder of the run")->required()->type_name("DIR");
  classify->add_flag("--resume", given.resume,
                     "go on from the newest checkpoint in --out, with the options saved there");
  classify->add_option("--config", given.config, "JSON file of options; flags win over it")->type_name("FILE");
  classify->add_option("--set", given.network, "a field of the model, such as lepe=5 or image=[32,32]; may come often")
      ->type_name("KEY=VALUE");
  classify->add_flag("--json", given.json, "the rows of the log on stdout, text on stderr");
  add_fields(*classify, given);
  classify->callback([&job] {
    job = [] {
      const Output out(given.json);
      const JsonValue request = JsonValue()
                                    .set("command", "train classify")
                                    .set("out", given.out)
                                    .set("resume", given.resume)
                                    .set("options", fields_to_json(options_of(given)));
      TrainScreen screen(out);
      const int code =
          run_in_train_library(request, [&](const JsonValue& row, bool progress) { screen.show(row, progress); });
      out.progress_done();
      return code;
    };
  });
}

}  // namespace mhla::apps
