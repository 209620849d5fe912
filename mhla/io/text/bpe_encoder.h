// The working side of a BpeTokenizer. Most pieces of a text are words met before: those of up to 30 bytes and 8 tokens
// are remembered, one cache line each, in a table where the newer one stays (2 MiB; 32,768 words). Private to this
// room.
#pragma once

#include "mhla/io/text/bpe.h"

namespace mhla {

class BpeEncoder final : public Encoder {
 public:
  BpeEncoder(const BpeTokenizer& tokenizer, SpecialText special);  // `tokenizer` outlives it
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) override;

 private:
  static constexpr std::size_t kWordBytes = 30, kWordTokens = 8, kWords = std::size_t{1} << 15;
  struct alignas(64) Word {
    std::uint32_t ids[kWordTokens];
    char text[kWordBytes];
    std::uint8_t length, count;  // length 0: empty
  };
  void encode_plain(std::string_view text, std::vector<std::uint32_t>& ids);
  void encode_piece(std::string_view piece, std::vector<std::uint32_t>& ids);
  void merge_short(std::string_view piece, std::vector<std::uint32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<std::uint32_t>& ids);

  const BpeTokenizer& tokenizer_;
  const std::vector<std::uint32_t>& added_;
  std::vector<Word> words_;
  std::vector<std::uint32_t> next_, before_, id_;  // scratch of merge_long
};

}  // namespace mhla
