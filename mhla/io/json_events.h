// The one place where JSON text is read: walk_json reports a document token by token. json.cpp makes values
// of it, safetensors.cpp fills its table without ever holding a tree. Private to this room.
// Duplicate keys are the handler's to refuse, since it holds the names: NameIndex finds them in a few bytes each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "mhla/core/error.h"
#include "mhla/io/json.h"

namespace mhla {

class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void integer(std::int64_t value) = 0;    // written with a minus sign
  virtual void natural(std::uint64_t value) = 0;   // written without
  virtual void real(double value) = 0;             // finite
  virtual void string(std::string_view text) = 0;  // decoded, valid UTF-8
  virtual void key(std::string_view text) = 0;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;

  std::size_t at = 0;  // bytes read so far: one past the closing quote during string() and key()
};

// Throws what the events throw, and an Error with line and column when the text is no JSON document.
void walk_json(std::string_view text, const std::string& label, const JsonLimits& limits, JsonEvents& events);

// "label: line 3, column 7: " for the byte at `offset`.
std::string json_place(std::string_view text, const std::string& label, std::size_t offset);

// Text from a file, fit for an error message: quoted, cut to 80 bytes.
std::string quoted_excerpt(std::string_view text);

}  // namespace mhla
