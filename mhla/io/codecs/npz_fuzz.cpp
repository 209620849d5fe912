// Any bytes are either refused with an Error that names them, or an npz whose every array is refused so or can be read
// to its last element.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/codecs/npz.h"

namespace {

void check_refusal(const mhla::Error& error) {
  if (std::strncmp(error.what(), "fuzz: ", 6) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  unsigned sum = 0;
  const auto read_all = [&](const mhla::NpyArray& array) {
    const auto count = static_cast<std::size_t>(array.view.numel() * size_of(array.view.dtype));
    for (std::size_t i = 0; i < count; ++i) sum += static_cast<const std::uint8_t*>(array.view.data)[i];
  };
  try {
    read_all(mhla::npy_array(bytes, "fuzz"));
  } catch (const mhla::Error& error) {
    check_refusal(error);
  }
  try {
    const mhla::Npz npz = mhla::Npz::from_memory(bytes, "fuzz", {.max_members = 64, .max_unpacked = 1 << 20});
    for (const std::string& name : npz.names()) {
      try {
        read_all(npz.array(name));
      } catch (const mhla::Error& error) {
        check_refusal(error);
      }
    }
  } catch (const mhla::Error& error) {
    check_refusal(error);
  }
  [[maybe_unused]] static volatile unsigned kept;
  kept = sum;
  return 0;
}
