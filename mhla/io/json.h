// JSON in and out. The reader is strict: duplicate keys, invalid UTF-8, comments, trailing text, a byte
// order mark, numbers beyond a double, too deep or too long a document are refused with line and column.
// Objects keep the order of their keys, so that writing what was read changes nothing.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace mhla {

template <class Value>  // a template, so that it is complete when JsonValue is
struct JsonMember {
  std::string key;
  Value value;
  friend bool operator==(const JsonMember&, const JsonMember&) = default;
};

class JsonValue {
 public:
  enum class Kind : std::uint8_t { kNull, kBool, kInt, kUInt, kReal, kString, kArray, kObject };
  using Member = JsonMember<JsonValue>;
  using Array = std::vector<JsonValue>;
  using Object = std::vector<Member>;  // in the order of the document; lookup is a linear scan

  JsonValue() = default;  // null
  JsonValue(std::nullptr_t) {}
  template <std::same_as<bool> T>
  JsonValue(T value) : value_(value) {}  // a template, so that a pointer does not become a bool
  template <std::signed_integral T>
  JsonValue(T value) : value_(static_cast<std::int64_t>(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) JsonValue(T value) : JsonValue(from_unsigned(value)) {}
  JsonValue(double value) : value_(value) {}
  JsonValue(const char* value) : value_(std::string(value)) {}
  JsonValue(std::string_view value) : value_(std::string(value)) {}
  JsonValue(std::string value) : value_(std::move(value)) {}
  JsonValue(Array value) : value_(std::move(value)) {}
  JsonValue(Object value) : value_(std::move(value)) {}
  static JsonValue array(std::initializer_list<JsonValue> items = {}) { return Array(items); }
  static JsonValue object(std::initializer_list<Member> members = {}) { return Object(members); }

  [[nodiscard]] Kind kind() const;  // kUInt only for what does not fit int64
  [[nodiscard]] bool is_null() const { return kind() == Kind::kNull; }
  [[nodiscard]] bool is_string() const { return kind() == Kind::kString; }
  [[nodiscard]] bool is_array() const { return kind() == Kind::kArray; }
  [[nodiscard]] bool is_object() const { return kind() == Kind::kObject; }
  [[nodiscard]] bool is_number() const { return kind() >= Kind::kInt && kind() <= Kind::kReal; }

  // The value as that type, or an Error saying what it is instead. 1.0 is no integer; 1 is a double.
  [[nodiscard]] bool as_bool() const;
  [[nodiscard]] std::int64_t as_int() const;
  [[nodiscard]] std::uint64_t as_uint() const;
  [[nodiscard]] double as_double() const;
  [[nodiscard]] const std::string& as_string() const;
  [[nodiscard]] const Array& items() const;
  [[nodiscard]] const Object& members() const;

  // at() refuses a missing key by its name and lists those present; find() returns null for it.
  [[nodiscard]] std::size_t size() const;  // of an array or object
  [[nodiscard]] const JsonValue* find(std::string_view key) const;
  [[nodiscard]] bool contains(std::string_view key) const { return find(key) != nullptr; }
  [[nodiscard]] const JsonValue& at(std::string_view key) const;
  [[nodiscard]] const JsonValue& at(std::size_t index) const;

  // Building. null turns into an object or array on first use; both return *this.
  JsonValue& set(std::string_view key, JsonValue value);  // replaces the value of a key that is there
  JsonValue& push(JsonValue value);

  friend bool operator==(const JsonValue& a, const JsonValue& b);

 private:
  static JsonValue from_unsigned(std::uint64_t value);
  template <class T>
  const T& get(const char* expected) const;
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20;
  int max_depth = 64;
  std::size_t max_token = std::numeric_limits<std::size_t>::max();  // bytes of one string, number or gap
};

// `label` stands at the head of an error: a path, or "metadata of case x".
JsonValue parse_json(std::string_view text, const std::string& label, const JsonLimits& limits = {});
JsonValue read_json(const std::filesystem::path& path, const JsonLimits& limits = {});

// With `indent` 0 one line, otherwise one member or item per line, indented. Doubles have the shortest text
// that reads back to the same bits; NaN and infinities are null; invalid UTF-8 becomes U+FFFD.
std::string write_json(const JsonValue& value, int indent = 0);
std::string json_quote(std::string_view text);  // with its quotes

}  // namespace mhla
