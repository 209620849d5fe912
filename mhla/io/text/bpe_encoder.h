// The working side of a BpeTokenizer. Private to this room.
#pragma once

#include "mhla/io/text/bpe.h"
#include "mhla/io/text/bpe_merge.h"
#include "mhla/io/text/word_cache.h"

namespace mhla {

class BpeEncoder final : public Encoder {
 public:
  BpeEncoder(const BpeTokenizer& tokenizer, SpecialText special);  // `tokenizer` outlives it
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) override;

 private:
  void encode_plain(std::string_view text, std::vector<std::uint32_t>& ids);
  void encode_piece(std::string_view piece, std::vector<std::uint32_t>& ids);

  const BpeTokenizer& tokenizer_;
  const std::vector<std::uint32_t>& added_;
  WordCache words_;
  BpeMerger merger_;
  std::vector<std::uint32_t> long_;  // tokens of a long piece
};

}  // namespace mhla
