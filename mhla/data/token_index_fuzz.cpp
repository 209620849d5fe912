// Any text is either refused with an Error that names it, or a dataset.json that is the same after writing and reading.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/data/token_set.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mhla;
  try {
    const TokenSetInfo info = parse_token_index({reinterpret_cast<const char*>(data), size}, "fuzz");
    if (!(parse_token_index(write_token_index(info), "written") == info)) std::abort();
    for (const TokenSplit* split : {&info.train, &info.valid})  // no name leads out of the folder
      for (const std::string& shard : split->shards)
        if (shard.find('/') != std::string::npos || shard == "..") std::abort();
  } catch (const Error& error) {
    if (std::strncmp(error.what(), "fuzz: ", 6) != 0) std::abort();
  }
  return 0;
}
