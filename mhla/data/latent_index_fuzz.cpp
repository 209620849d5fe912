// Any text is either refused with an Error that names it, or a latents.json that is the same after writing and reading.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/data/latent_set.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mhla;
  try {
    const LatentSetConfig config = parse_latent_config({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!(parse_latent_config(write_latent_config(config), "written") == config)) std::abort();
    std::int64_t items = 0;  // shards hold every item once
    for (std::int64_t i = 0; i < config.shards(); ++i) items += config.items_of(i);
    if (items != config.count) std::abort();
  } catch (const Error& error) {
    if (std::strncmp(error.what(), "fuzz: ", 6) != 0) std::abort();
  }
  return 0;
}
