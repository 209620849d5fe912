// Any text is either refused with an Error, or a value that is the same after writing and reading.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/json.h"
#include "mhla/io/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const mhla::JsonValue value = mhla::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!(mhla::parse_json(write_json(value), "written") == value)) std::abort();
    if (!(mhla::parse_json(write_json(value, 2), "written") == value)) std::abort();
  } catch (const mhla::Error& error) {
    if (!mhla::is_utf8(error.what()) || std::strncmp(error.what(), "fuzz", 4) != 0) std::abort();
  }
  return 0;
}
