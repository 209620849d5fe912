// Learns a byte-level BPE vocabulary: the most frequent pair of neighbours inside pieces becomes a token, again and
// again. Of pairs that are as frequent the one with the smaller ids, left then right, is taken, so the result depends
// on the text alone, not on the order of its documents.
#pragma once

#include <unordered_map>

#include "mhla/io/text/bpe.h"

namespace mhla {

struct BpeTrainOptions {
  std::int64_t vocab_size = 32000;  // with the 256 bytes and the special tokens
  PieceRule rule = PieceRule::kGpt2;
  std::vector<std::string> specials = {std::string(kEndOfText)};  // ids from 256 on
  std::int64_t min_count = 2;                                     // of a pair that becomes a token
};

class BpeTrainer {
 public:
  explicit BpeTrainer(BpeTrainOptions options);
  void add(std::string_view document);
  // Fewer tokens than asked for when no pair is left that comes `min_count` times.
  [[nodiscard]] std::shared_ptr<const BpeTokenizer> train() const;

 private:
  BpeTrainOptions options_;
  std::unordered_map<std::string, std::int64_t> pieces_;
  std::string key_;  // scratch
};

}  // namespace mhla
