// Any bytes are either refused with an Error that names them, or unpack to what packs and unpacks to itself.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/codecs/gzip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto bytes = mhla::gunzip(std::as_bytes(std::span(data, size)), "fuzz", 1 << 20);
    if (mhla::gunzip(mhla::gzip(bytes), "packed") != bytes) std::abort();
  } catch (const mhla::Error& error) {
    if (std::strncmp(error.what(), "fuzz: ", 6) != 0) std::abort();
  }
  return 0;
}
