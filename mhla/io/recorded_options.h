// The options of a recorded case of published code: a JSON object of a golden file's metadata. Whoever computes the
// case again reads every option it has, or refuses it.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "mhla/io/json.h"

namespace mhla {

struct RecordedOptions {
  JsonValue config;  // the metadata of the case

  // Refused by name where they are missing and have no other value.
  [[nodiscard]] std::int64_t integer(const char* key) const;
  [[nodiscard]] double number(const char* key, double otherwise) const;
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::string text(const char* key) const;
  [[nodiscard]] std::string text(const char* key, const char* otherwise) const;
  // Refuses options that are not among these, as they would be computed wrongly.
  void expect_keys(std::initializer_list<const char*> known) const;
  // Refuses another value than the only one that can be computed; the option may be missing.
  void expect_text(const char* key, const std::string& expected) const;
};

}  // namespace mhla
