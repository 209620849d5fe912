// Text and tokenizers for the tests of this room.
#pragma once

#include <string>

#include "mhla/io/text/bpe_train.h"
#include "mhla/testing/random.h"

namespace mhla {

// Words of one to nine letters, some far more frequent than others, with the punctuation of prose.
inline std::string prose(int words, std::uint64_t seed) {
  Random random(seed);
  const auto below = [&](int count) { return static_cast<int>(random.uniform() * count); };
  std::string text;
  for (int i = 0; i < words; ++i) {
    Random word(static_cast<std::uint64_t>(1 + below(30) * below(30)));
    const int letters = 1 + static_cast<int>(word.uniform() * 9);
    for (int j = 0; j < letters; ++j) text += static_cast<char>('a' + static_cast<int>(word.uniform() * 26));
    text += i % 11 == 10 ? ". " : i % 37 == 36 ? "\n\n" : i % 23 == 22 ? "'s 42, " : " ";
  }
  return text;
}

inline std::string any_bytes(std::size_t size, std::uint64_t seed) {
  Random random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random.uniform() * 256);
  return text;
}

inline std::shared_ptr<const BpeTokenizer> trained(std::int64_t vocab_size, PieceRule rule = PieceRule::kGpt2) {
  BpeTrainOptions options;
  options.vocab_size = vocab_size;
  options.rule = rule;
  BpeTrainer trainer(options);
  trainer.add(prose(5000, 1));
  return trainer.train();
}

}  // namespace mhla
