// Flags from the fields of a request (io/fields.h): --field-name with the field's help text for each of them, and
// --config FILE, a JSON object of the same fields, which flags override. A command then says what is special about a
// flag: its range, that it is required, the word for its value.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "apps/cli/flags.h"
#include "mhla/core/error.h"
#include "mhla/io/fields.h"
#include "mhla/io/json_object.h"

namespace mhla::apps {

inline std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

class RequestFlags {
 public:
  // `names`: field -> "--context,--length" where it is not --field-name. Fields that are two or three numbers have no
  // flag of their own: the command reads them in its own way.
  enum class Config { kFile, kNone };  // whether there is a --config
  template <class Request>
  RequestFlags(CLI::App& command, Request& request, const std::map<std::string, std::string>& names = {},
               Config config = Config::kFile) {
    if (config == Config::kFile) {
      command
          .add_option_function<std::string>(
              "--config", [flags = flags_](const std::string& file) { take_file(*flags, file); },
              "JSON file with options; flags override it")
          ->type_name("FILE");  // the first: its values are there when the others are read
    }
    Request::fields(request, [&](const char* name, auto& field, const char* help) {
      using Field = std::decay_t<decltype(field)>;
      const auto own = names.find(name);
      const std::string flag = own == names.end() ? flag_of(name) : own->second;
      if constexpr (std::is_same_v<Field, bool>) {
        (*flags_)[name] = command.add_flag(flag, field, help);
      } else if constexpr (!is_pairs<Field>) {
        (*flags_)[name] = command.add_option(flag, field, help);
      }
    });
  }

  CLI::Option& operator[](const std::string& field) const {
    const auto found = flags_->find(field);
    if (found == flags_->end()) fail("no flag for field '", field, "'");
    return *found->second;
  }

  // With its default in the help.
  CLI::Option& shown(const std::string& field) const { return *(*this)[field].capture_default_str(); }

 private:
  using Options = std::map<std::string, CLI::Option*>;
  template <class Field>
  static constexpr bool is_pairs = std::is_same_v<Field, std::optional<std::array<std::int64_t, 2>>> ||
                                   std::is_same_v<Field, std::optional<std::array<std::int64_t, 3>>> ||
                                   std::is_same_v<Field, std::vector<std::array<std::int64_t, 2>>>;

  // As if the values stood on the command line, so that the same checks apply.
  static void take_file(const Options& flags, const std::string& file) {
    std::vector<std::string> names;
    for (const auto& [name, option] : flags) names.push_back(name);
    const JsonValue object = read_json_object(file);
    for (const JsonValue::Member& member : object.members()) {
      const auto found = flags.find(member.key);
      if (found == flags.end())
        fail(file, ": '", member.key, "' is unknown, nearest is '", nearest_name(member.key, names), "'");
      if (found->second->count() > 0 || member.value.is_null()) continue;
      const auto add = [&](const JsonValue& value) {
        if (value.is_array() || value.is_object())
          fail(file, ": '", member.key, "' is ", write_json(value), ", expected a number, text or true or false");
        found->second->add_result(value.is_string() ? value.as_string() : write_json(value));
      };
      if (!member.value.is_array()) {
        add(member.value);
      } else {
        for (const JsonValue& item : member.value.items()) add(item);
      }
    }
  }

  std::shared_ptr<Options> flags_ = std::make_shared<Options>();
};

// What weights, device and threads of OpenOptions may be.
inline void check_open_flags(const RequestFlags& flags) {
  flags.shown("weights").check(one_of({"model", "ema", "best"}));
  flags["device"].type_name("NAME");
  flags.shown("threads").check(whole_number(0, 1024));
}

}  // namespace mhla::apps
