// Multi-query associative recall (Arora et al., 2023), made by length and seed: keys and values as tokens, then the
// keys again, each with its value behind it, between keys that are in no pair. What a model should say behind a key
// that comes back is its value.
#pragma once

#include <cstdint>
#include <vector>

namespace mhla {

struct MqarOptions {
  std::int64_t length = 256, pairs = 16;  // 4 pairs <= length
  std::int64_t vocab_size = 8192;         // ids 0 to 8191: keys in the lower half, values in the upper one
  std::int64_t skew = 1;                  // 1: keys come back anywhere; n: at u^n of the rest, so mostly early
  std::uint64_t seed = 0;
};

struct MqarSequence {
  std::vector<std::uint32_t> tokens;    // [length]
  std::vector<std::int64_t> places;     // where keys come back; their values stand one behind
  std::vector<std::uint32_t> expected;  // the values
};

void check(const MqarOptions& options);
// Sequences to judge a model by. No seed gives one that any training has seen, but for what chance repeats: the streams
// of random numbers differ.
MqarSequence mqar_sequence(const MqarOptions& options, std::int64_t item);
// Sequences to learn from: other ones in every epoch.
MqarSequence mqar_lesson(const MqarOptions& options, std::int64_t epoch, std::int64_t item);
}  // namespace mhla
