// Paths among the options of a run. What was typed may be relative to a folder that nobody is in when the run goes on
// or is evaluated: train.json keeps it as it was typed, and under "origin" where that was. Options::paths() names the
// fields. Runs made before have no origin; for them a path is what was typed.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "mhla/io/fields.h"

namespace mhla::train {

namespace origin {

inline bool is_there(const std::string& path) {
  std::error_code none;
  return !path.empty() && std::filesystem::exists(path, none);
}

// "mnist:" of "mnist:DIR": letters, digits and dashes before a colon.
inline std::string kind_of(const std::string& value) {
  const std::size_t end = value.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-");
  return end != std::string::npos && end > 0 && value[end] == ':' ? value.substr(0, end + 1) : "";
}

// Whether what a value names lies on this disk: PATH or KIND:PATH.
inline bool leads_somewhere(const std::string& value) {
  return is_there(value) || is_there(value.substr(kind_of(value).size()));
}

inline std::string absolute(const std::string& path) {
  std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "data/"
  return whole.string();
}

// Names of what is no file, whatever lies here: Debian's sets, data that is made, a tokenizer without a file.
inline bool is_word(const std::string& value) {
  static const std::set<std::string> words{"default", "sample", "mqar", "bytes", "fashion-mnist", "moving-garments"};
  return value.empty() || words.count(value) != 0 || value.rfind("train:", 0) == 0;
}

// `value` from any folder: absolute where it is a path or KIND:PATH, as it is where it is a word. `made`: a folder that
// need not be there yet.
inline std::string absolute_form(const std::string& value, bool made = false) {
  if (is_word(value)) return value;
  if (made || is_there(value)) return absolute(value);
  const std::string kind = kind_of(value), rest = value.substr(kind.size());
  return !kind.empty() && is_there(rest) ? kind + absolute(rest) : value;
}

template <class Options, class Visit>
void each_path(Options& options, Visit&& visit) {
  const std::set<std::string> paths = Options::paths();
  Options::fields(options, [&](const char* name, auto& field, const char*) {
    if constexpr (std::is_same_v<std::decay_t<decltype(field)>, std::string>) {
      if (paths.count(name) != 0) visit(std::string(name), field);
    }
  });
}

}  // namespace origin

// Forgets where `name` was: it is given anew.
inline JsonValue without_origin(const JsonValue& known, const std::string& name) {
  JsonValue kept = JsonValue::object();
  for (const JsonValue::Member& member : known.members())
    if (member.key != name) kept.set(member.key, member.value);
  return kept;
}

// Where every path is, for those that the origin does not have yet.
template <class Options>
void note_origin(Options& options) {
  labelled("train.json: 'origin'", [&] { (void)options.origin.members(); });
  origin::each_path(options, [&](const std::string& name, std::string& value) {
    if (!value.empty() && !options.origin.contains(name))
      options.origin.set(name, origin::absolute_form(value, /*made=*/name == "tokens"));
  });
}

// The same options with the paths of the origin; what is not there any more, but where it was typed is.
template <class Options>
Options located(Options options) {
  origin::each_path(options, [&](const std::string& name, std::string& value) {
    const std::string where = labelled("train.json: 'origin'", [&] {
      const JsonValue* was = options.origin.find(name);
      return was == nullptr ? std::string() : was->as_string();
    });
    if (!where.empty() && (origin::leads_somewhere(where) || !origin::leads_somewhere(value))) value = where;
  });
  return options;
}

// `options` with the paths as `typed` has them: what train.json keeps.
template <class Options>
Options as_typed(Options options, Options typed) {
  origin::each_path(typed, [&](const std::string& name, std::string& value) {
    origin::each_path(options, [&](const std::string& same, std::string& now) {
      if (same == name) now = value;
    });
  });
  return options;
}

}  // namespace mhla::train
