// Merging in place: in a list of tokens the pair of neighbours with the lowest merge is joined, the leftmost first,
// until none is left. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "mhla/io/text/bpe_index.h"

namespace mhla {

class BpeMerger {
 public:
  static constexpr std::size_t kShort = 64;  // up to here looking at all pairs for every merge beats a queue

  // Of at most kShort tokens; how many are left at the beginning of `ids`.
  static std::size_t merge_short(const PairTable& pairs, std::uint32_t* ids, std::size_t count) {
    std::array<Merge, kShort> merge;  // of ids[i] and ids[i + 1]
    for (std::size_t i = 0; i + 1 < count; ++i) merge[i] = pairs.find(ids[i], ids[i + 1]);
    while (count > 1) {
      std::size_t best = 0;
      for (std::size_t i = 1; i + 1 < count; ++i)
        if (merge[i].rank < merge[best].rank) best = i;
      if (merge[best].rank == kNoMerge) break;
      ids[best] = merge[best].id;
      --count;
      for (std::size_t i = best + 1; i < count; ++i) {
        ids[i] = ids[i + 1];
        merge[i - 1] = merge[i];
      }
      if (best + 1 < count) merge[best] = pairs.find(ids[best], ids[best + 1]);
      if (best > 0) merge[best - 1] = pairs.find(ids[best - 1], ids[best]);
    }
    return count;
  }

  // The same by a queue of pairs over a linked list: n log n for any number of tokens.
  void merge_long(const PairTable& pairs, std::vector<std::uint32_t>& ids);

 private:
  std::vector<std::uint32_t> next_, before_;
};

}  // namespace mhla
