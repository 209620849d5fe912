// Any bytes are either refused with an Error that names them, or documents that cover their tokens.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "mhla/core/error.h"
#include "mhla/io/crc32c.h"
#include "mhla/io/text/token_shard.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint64_t> aligned(size / 8 + 1);
  std::memcpy(aligned.data(), data, size);
  auto* bytes = reinterpret_cast<std::byte*>(aligned.data());
  if (size >= 64) {  // else no input would come past the head
    const std::uint32_t crc = mhla::crc32c({bytes, 60});
    std::memcpy(bytes + 60, &crc, 4);
  }
  try {
    const auto shard = mhla::TokenShard::from_memory({bytes, size}, "fuzz");
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(shard.tokens()));
    std::int64_t sum = 0;
    for (std::size_t i = 0; i + 1 < shard.offsets().size(); ++i) {
      const auto first = static_cast<std::int64_t>(shard.offsets()[i]);
      const std::int64_t count = static_cast<std::int64_t>(shard.offsets()[i + 1]) - first;
      shard.copy(first, count, tokens.data() + first);
      sum += count;
    }
    if (sum != shard.tokens()) std::abort();
    shard.verify();
  } catch (const mhla::Error& error) {
    if (std::strncmp(error.what(), "fuzz: ", 6) != 0) std::abort();
  }
  return 0;
}
