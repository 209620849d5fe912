#include "mhla/io/json.h"

#include <array>
#include <charconv>
#include <cmath>

#include "mhla/core/error.h"
#include "mhla/io/file.h"
#include "mhla/io/json_events.h"
#include "mhla/io/name_index.h"
#include "mhla/io/utf8.h"

namespace mhla {
namespace {

constexpr std::string_view kKindNames[] = {"null",          "a boolean", "an integer", "an integer beyond int64",
                                           "a real number", "a string",  "an array",   "an object"};

// Builds the tree bottom up: a stack of open containers, each with the key its next value goes to.
class Builder final : public JsonEvents {
 public:
  Builder(std::string_view text, const std::string& label) : text_(text), label_(label) {}

  void null() override { put({}); }
  void boolean(bool value) override { put(value); }
  void integer(std::int64_t value) override { put(value); }
  void natural(std::uint64_t value) override { put(value); }
  void real(double value) override { put(value); }
  void string(std::string_view text) override { put(text); }
  void begin_object() override { open_.push_back({.is_object = true}); }
  void begin_array() override { open_.emplace_back(); }
  void end_object() override {
    close([](Open& done) { return JsonValue(std::move(done.members)); });
  }
  void end_array() override {
    close([](Open& done) { return JsonValue(std::move(done.items)); });
  }
  void key(std::string_view text) override {
    Open& object = open_.back();
    const auto name_at = [&](std::uint32_t i) -> std::string_view { return object.members[i].key; };
    if (object.index.add(text, name_at) != NameIndex::kNone)
      fail(json_place(text_, label_, at - 1), "key ", quoted_excerpt(text), " appears twice in one object");
    object.members.push_back({std::string(text), {}});
  }

  JsonValue root;

 private:
  struct Open {
    bool is_object = false;
    JsonValue::Array items{};
    JsonValue::Object members{};
    NameIndex index{};
  };
  void put(JsonValue value) {
    if (open_.empty())
      root = std::move(value);
    else if (open_.back().is_object)
      open_.back().members.back().value = std::move(value);
    else
      open_.back().items.push_back(std::move(value));
  }
  template <class Finish>
  void close(const Finish& finish) {
    JsonValue done = finish(open_.back());
    open_.pop_back();
    put(std::move(done));
  }

  std::string_view text_;
  const std::string& label_;
  std::vector<Open> open_;
};

template <class Number>
void append_number(std::string& out, Number value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

void append_real(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  const std::size_t start = out.size();
  append_number(out, value);
  if (out.find_first_of(".e", start) == out.npos) out += ".0";  // 1 would come back as an integer
}

void append_quoted(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      out += kReplacementCharacter;
    } else if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      ((out += "\\u00") += kHex[c >> 4]) += kHex[c & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

void append_value(std::string& out, const JsonValue& value, int indent, int depth) {
  const auto line = [&](int level) {
    if (indent > 0) (out += '\n').append(static_cast<std::size_t>(indent * level), ' ');
  };
  switch (value.kind()) {
    case JsonValue::Kind::kNull: out += "null"; break;
    case JsonValue::Kind::kBool: out += value.as_bool() ? "true" : "false"; break;
    case JsonValue::Kind::kInt: append_number(out, value.as_int()); break;
    case JsonValue::Kind::kUInt: append_number(out, value.as_uint()); break;
    case JsonValue::Kind::kReal: append_real(out, value.as_double()); break;
    case JsonValue::Kind::kString: append_quoted(out, value.as_string()); break;
    case JsonValue::Kind::kArray: {
      out += '[';
      const char* comma = "";
      for (const JsonValue& item : value.items()) {
        out += comma;
        line(depth + 1);
        append_value(out, item, indent, depth + 1);
        comma = indent > 0 ? "," : ", ";
      }
      if (value.size() > 0) line(depth);
      out += ']';
      break;
    }
    case JsonValue::Kind::kObject: {
      out += '{';
      const char* comma = "";
      for (const JsonValue::Member& member : value.members()) {
        out += comma;
        line(depth + 1);
        append_quoted(out, member.key);
        out += ": ";
        append_value(out, member.value, indent, depth + 1);
        comma = indent > 0 ? "," : ", ";
      }
      if (value.size() > 0) line(depth);
      out += '}';
      break;
    }
  }
}

}  // namespace

JsonValue JsonValue::from_unsigned(std::uint64_t value) {
  JsonValue result;
  if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    result.value_ = static_cast<std::int64_t>(value);
  else
    result.value_ = value;
  return result;
}

JsonValue::Kind JsonValue::kind() const { return static_cast<Kind>(value_.index()); }

template <class T>
const T& JsonValue::get(const char* expected) const {
  if (const T* value = std::get_if<T>(&value_)) return *value;
  fail("JSON value is ", kKindNames[value_.index()], ", expected ", expected);
}

bool JsonValue::as_bool() const { return get<bool>("a boolean"); }
std::int64_t JsonValue::as_int() const { return get<std::int64_t>("an integer"); }

std::uint64_t JsonValue::as_uint() const {
  if (kind() == Kind::kUInt) return std::get<std::uint64_t>(value_);
  const std::int64_t value = get<std::int64_t>("an integer of at least 0");
  if (value < 0) fail("JSON value is ", value, ", expected an integer of at least 0");
  return static_cast<std::uint64_t>(value);
}

double JsonValue::as_double() const {
  if (kind() == Kind::kInt) return static_cast<double>(std::get<std::int64_t>(value_));
  if (kind() == Kind::kUInt) return static_cast<double>(std::get<std::uint64_t>(value_));
  return get<double>("a number");
}

const std::string& JsonValue::as_string() const { return get<std::string>("a string"); }
const JsonValue::Array& JsonValue::items() const { return get<Array>("an array"); }
const JsonValue::Object& JsonValue::members() const { return get<Object>("an object"); }

std::size_t JsonValue::size() const {
  if (const Array* list = std::get_if<Array>(&value_)) return list->size();
  return get<Object>("an array or object").size();
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const Member& member : members())
    if (member.key == key) return &member.value;
  return nullptr;
}

const JsonValue& JsonValue::at(std::string_view key) const {
  if (const JsonValue* value = find(key)) return *value;
  std::string present;
  for (const Member& member : members()) {
    if (present.size() > 200) {
      present += ", ...";
      break;
    }
    present += (present.empty() ? "" : ", ") + quoted_excerpt(member.key);
  }
  fail("JSON object has no key ", quoted_excerpt(key), ", it has ", present.empty() ? "none" : present);
}

const JsonValue& JsonValue::at(std::size_t index) const {
  const Array& list = items();
  if (index >= list.size()) fail("JSON array has ", list.size(), " items, item ", index, " was asked for");
  return list[index];
}

JsonValue& JsonValue::set(std::string_view key, JsonValue value) {
  if (is_null()) value_ = Object();
  if (!is_object()) fail("JSON value is ", kKindNames[value_.index()], ", expected an object to set a key of");
  auto& object = std::get<Object>(value_);
  for (Member& member : object) {
    if (member.key != key) continue;
    member.value = std::move(value);
    return *this;
  }
  object.push_back({std::string(key), std::move(value)});
  return *this;
}

JsonValue& JsonValue::push(JsonValue value) {
  if (is_null()) value_ = Array();
  if (!is_array()) fail("JSON value is ", kKindNames[value_.index()], ", expected an array to push to");
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

bool operator==(const JsonValue& a, const JsonValue& b) { return a.value_ == b.value_; }

JsonValue parse_json(std::string_view text, const std::string& label, const JsonLimits& limits) {
  Builder builder(text, label);
  walk_json(text, label, limits, builder);
  return std::move(builder.root);
}

JsonValue read_json(const std::filesystem::path& path, const JsonLimits& limits) {
  const std::vector<std::byte> bytes = read_file(path, limits.max_bytes);
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string(), limits);
}

std::string write_json(const JsonValue& value, int indent) {
  std::string out;
  append_value(out, value, indent, 0);
  return out;
}

std::string json_quote(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

}  // namespace mhla
