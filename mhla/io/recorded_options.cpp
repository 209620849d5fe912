#include "mhla/io/recorded_options.h"

#include <algorithm>

#include "mhla/core/error.h"
#include "mhla/core/labelled.h"

namespace mhla {
namespace {

// How a case was made, not what it computes.
constexpr const char* kHarmless[] = {"family", "note", "gradient_of", "seed", "device", "dtype"};

template <class Read>
auto value_of(const JsonValue& config, const char* key, Read read) {
  return labelled(str("metadata '", key, "'"), [&] { return read(config.at(key)); });
}

}  // namespace

std::int64_t RecordedOptions::integer(const char* key) const {
  if (!config.contains(key)) fail("metadata '", key, "' is missing");
  const std::int64_t value = value_of(config, key, [](const JsonValue& json) { return json.as_int(); });
  if (value < 1) fail("metadata '", key, "' is ", value, ", expected a positive integer");
  return value;
}

double RecordedOptions::number(const char* key, double otherwise) const {
  if (!config.contains(key)) return otherwise;
  return value_of(config, key, [](const JsonValue& json) { return json.as_double(); });
}

bool RecordedOptions::flag(const char* key, bool otherwise) const {
  if (!config.contains(key)) return otherwise;
  return value_of(config, key, [](const JsonValue& json) { return json.as_bool(); });
}

std::string RecordedOptions::text(const char* key) const {
  if (!config.contains(key)) fail("metadata '", key, "' is missing");
  return value_of(config, key, [](const JsonValue& json) { return std::string(json.as_string()); });
}

std::string RecordedOptions::text(const char* key, const char* otherwise) const {
  return config.contains(key) ? text(key) : otherwise;
}

void RecordedOptions::expect_keys(std::initializer_list<const char*> known) const {
  for (const JsonValue::Member& member : config.members()) {
    const auto is_it = [&](const char* key) { return member.key == key; };
    if (std::none_of(std::begin(kHarmless), std::end(kHarmless), is_it) &&
        std::none_of(known.begin(), known.end(), is_it))
      fail("metadata '", member.key, "' is no option of this family");
  }
}

void RecordedOptions::expect_text(const char* key, const std::string& expected) const {
  if (const std::string value = text(key, expected.c_str()); value != expected)
    fail("metadata '", key, "' is '", value, "', expected ", expected);
}

}  // namespace mhla
