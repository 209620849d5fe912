// Most pieces of a text are words met before: those of up to 30 bytes and 8 tokens are remembered, one cache line each,
// in a table where the newer one stays (2 MiB; 32,768 words). Private to this room.
#pragma once

#include <algorithm>
#include <cstring>

#include "mhla/io/text/bpe_index.h"

namespace mhla {

class WordCache {
 public:
  // Appends the tokens of `piece`, which is not empty; `encode(piece, ids)` does so where it is a new one.
  template <class Encode>
  void encode(std::string_view piece, std::vector<std::uint32_t>& ids, const Encode& encode) {
    if (words_.empty()) words_.resize(kWords);
    if (piece.size() > kWordBytes) return encode(piece, ids);
    Word& word = words_[hash_bytes(piece) & (kWords - 1)];
    if (word.length == piece.size() && std::memcmp(word.text, piece.data(), piece.size()) == 0) {
      ids.insert(ids.end(), word.ids, word.ids + word.count);
      return;
    }
    const std::size_t begin = ids.size();
    encode(piece, ids);
    const std::size_t count = ids.size() - begin;
    if (count > kWordTokens) return;
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end(), word.ids);
    std::memcpy(word.text, piece.data(), piece.size());
    word.length = static_cast<std::uint8_t>(piece.size());
    word.count = static_cast<std::uint8_t>(count);
  }

 private:
  static constexpr std::size_t kWordBytes = 30, kWordTokens = 8, kWords = std::size_t{1} << 15;
  struct alignas(64) Word {
    std::uint32_t ids[kWordTokens];
    char text[kWordBytes];
    std::uint8_t length, count;  // length 0: empty
  };
  std::vector<Word> words_;
};

}  // namespace mhla
