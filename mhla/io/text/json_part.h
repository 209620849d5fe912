// Objects of tokenizer.json: whatever is not known here is refused by its name. Private to this room.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/io/json.h"

namespace mhla {

inline std::string shown(const JsonValue& value) {
  const std::string text = write_json(value);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

// One object of the file: what it may hold, and with which values.
class JsonPart {
 public:
  JsonPart(const JsonValue& value, std::string name, std::initializer_list<std::string_view> known)
      : value_(value), name_(std::move(name)) {
    if (!value.is_object()) fail(name_, " is ", shown(value), ", expected an object");
    for (const JsonValue::Member& member : value.members())
      if (std::find(known.begin(), known.end(), member.key) == known.end())
        fail(name_, " has ", json_quote(member.key).substr(0, 80), ", which is not known here");
  }
  [[nodiscard]] const JsonValue* find(std::string_view key) const {  // null where the file says null
    const JsonValue* value = value_.find(key);
    return value != nullptr && value->is_null() ? nullptr : value;
  }
  [[nodiscard]] const JsonValue& at(std::string_view key) const {
    const JsonValue* value = find(key);
    if (value == nullptr) fail(name_, " has no '", key, "'");
    return *value;
  }
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const {
    const JsonValue* value = find(key);
    return value != nullptr ? value->as_bool() : otherwise;
  }
  // Absent, null, or the one value that means nothing happens.
  void only(std::string_view key, const JsonValue& harmless) const {
    const JsonValue* value = find(key);
    if (value != nullptr && !(*value == harmless))
      fail(name_, ".", key, " is ", shown(*value), ", expected ",
           harmless.is_null() ? "null" : "null or " + shown(harmless), ": it would change what is encoded");
  }

 private:
  const JsonValue& value_;
  std::string name_;
};

inline std::string type_of(const JsonValue& value, const std::string& name) {
  if (!value.is_object() || !value.contains("type") || !value.at("type").is_string())
    fail(name, " is ", shown(value), ", expected an object with a type");
  return value.at("type").as_string();
}

}  // namespace mhla
