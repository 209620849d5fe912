// The fields of a struct, listed once: reading from JSON, writing and help all come from the list.
//   struct Config {
//     std::int64_t depth = 12;
//     template <class Self, class Visit>
//     static void fields(Self& c, Visit&& visit) { visit("depth", c.depth, "blocks"); }
//   };
// Fields are bool, std::int64_t, double, std::string, JsonValue, std::optional, std::array and std::vector of these.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mhla/core/labelled.h"
#include "mhla/io/json.h"

namespace mhla {

// Of `names` the one with the fewest letters to change, insert, remove or swap with their neighbour; empty without
// names.
std::string nearest_name(std::string_view name, const std::vector<std::string>& names);

namespace fields {

inline JsonValue to_json(bool value) { return value; }
inline JsonValue to_json(std::int64_t value) { return value; }
inline JsonValue to_json(double value) { return value; }
inline JsonValue to_json(const std::string& value) { return value; }
inline JsonValue to_json(const JsonValue& value) { return value; }
template <class T>
JsonValue to_json(const std::optional<T>& value) {
  return value ? to_json(*value) : JsonValue();
}
template <class List>
requires requires(const List& list) { list.size(), list.begin(); }
JsonValue to_json(const List& list) {
  JsonValue items = JsonValue::array();
  for (const auto& item : list) items.push(to_json(item));
  return items;
}

inline void from_json(const JsonValue& json, bool& value) { value = json.as_bool(); }
inline void from_json(const JsonValue& json, std::int64_t& value) { value = json.as_int(); }
inline void from_json(const JsonValue& json, double& value) { value = json.as_double(); }
inline void from_json(const JsonValue& json, std::string& value) { value = json.as_string(); }
inline void from_json(const JsonValue& json, JsonValue& value) { value = json; }
template <class T>
void from_json(const JsonValue& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) from_json(json, value.emplace());
}
template <class T, std::size_t size>
void from_json(const JsonValue& json, std::array<T, size>& value) {
  if (json.size() != size) fail("a list of ", json.size(), ", expected ", size, " items");
  for (std::size_t i = 0; i < size; ++i) from_json(json.at(i), value[i]);
}
template <class T>
void from_json(const JsonValue& json, std::vector<T>& value) {
  value.clear();
  for (const JsonValue& item : json.items()) from_json(item, value.emplace_back());
}

}  // namespace fields

template <class Config>
std::vector<std::string> field_names() {
  std::vector<std::string> names;
  Config config;
  Config::fields(config, [&](const char* name, auto&, const char*) { names.emplace_back(name); });
  return names;
}

template <class Config>
JsonValue fields_to_json(const Config& config) {
  JsonValue object = JsonValue::object();
  Config::fields(config,
                 [&](const char* name, const auto& field, const char*) { object.set(name, fields::to_json(field)); });
  return object;
}

// Fields that are not in the object keep their values. `label` stands at the head of an error: the file's path.
template <class Config>
void fields_from_json(Config& config, const JsonValue& object, const std::string& label) {
  const std::vector<std::string> names = field_names<Config>();
  const JsonValue::Object& members = labelled(label, [&]() -> const JsonValue::Object& { return object.members(); });
  for (const JsonValue::Member& member : members) {
    bool known = false;
    Config::fields(config, [&](const char* name, auto& field, const char*) {
      if (member.key != name) return;
      known = true;
      labelled(str(label, ": '", name, "'"), [&] { fields::from_json(member.value, field); });
    });
    if (!known) fail(label, ": '", member.key, "' is unknown, nearest is '", nearest_name(member.key, names), "'");
  }
}

}  // namespace mhla
