#include "mhla/kernels/common/part.h"

#include <algorithm>

namespace mhla {

std::vector<std::int64_t> tokens_of_blocks(const BlockMap& map, std::int64_t first, std::int64_t blocks) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t block = first; block < first + blocks; ++block) {
    for (std::int64_t run = 0; run < map.runs(block); ++run) {
      for (std::int64_t i = 0; i < map.run_length(block); ++i) tokens.push_back(map.run_start(block, run) + i);
    }
  }
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace mhla
