// What encoding looks up: the merge of a pair, the token of some bytes. Private to this room.
#pragma once

#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mhla/io/text/bpe.h"

namespace mhla {

inline constexpr std::uint32_t kNoMerge = std::numeric_limits<std::uint32_t>::max();

struct Merge {
  std::uint32_t rank = kNoMerge;
  std::uint32_t id = 0;
};

inline std::uint64_t mix_bits(std::uint64_t x) {  // every bit of the result depends on every bit of x
  x = (x ^ (x >> 32)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

inline std::uint64_t hash_bytes(std::string_view text) {
  std::uint64_t hash = text.size();
  std::size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    hash = mix_bits(hash ^ word);
  }
  std::uint64_t word = 0;
  if (i < text.size()) std::memcpy(&word, text.data() + i, text.size() - i);
  return mix_bits(hash ^ word);
}

// Pairs by open addressing, at most half full.
class PairTable {
 public:
  explicit PairTable(std::size_t pairs) : slots_(std::bit_ceil(2 * pairs + 2)) {}
  bool add(std::uint32_t left, std::uint32_t right, Merge merge) {  // false: the pair is there
    Slot& slot = slots_[find_slot(left, right)];
    if (slot.merge.rank != kNoMerge) return false;
    slot = {left, right, merge};
    return true;
  }
  [[nodiscard]] Merge find(std::uint32_t left, std::uint32_t right) const {
    return slots_[find_slot(left, right)].merge;
  }

 private:
  struct Slot {
    std::uint32_t left = 0, right = 0;
    Merge merge;
  };
  [[nodiscard]] std::size_t find_slot(std::uint32_t left, std::uint32_t right) const {
    std::size_t at = mix_bits(std::uint64_t{left} << 32 | right) & (slots_.size() - 1);
    while (slots_[at].merge.rank != kNoMerge && (slots_[at].left != left || slots_[at].right != right))
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  std::vector<Slot> slots_;
};

struct BpeTokenizer::Index {
  explicit Index(std::size_t merges) : pairs(merges) {}
  PairTable pairs;
  std::unordered_map<std::string_view, std::uint32_t> ids;  // of tokens that are no special ones
  std::vector<std::uint32_t> added[2];                      // specials to look for, by SpecialText, longest first
};

}  // namespace mhla
