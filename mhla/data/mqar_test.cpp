#include "mhla/data/mqar.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "mhla/testing/messages.h"

namespace mhla {
namespace {

TEST(Mqar, EveryKeyComesBackOnceWithItsValue) {
  for (const auto& [length, pairs, vocab, skew] : {std::array<std::int64_t, 4>{64, 16, 100, 1},
                                                   {256, 8, 8192, 1},
                                                   {101, 3, 8, 1},
                                                   {4, 1, 4, 1},
                                                   {256, 8, 8192, 50}}) {
    MqarOptions options;
    options.length = length, options.pairs = pairs, options.vocab_size = vocab, options.skew = skew;
    options.seed = 3;
    for (std::int64_t item = 0; item < 20; ++item) {
      const MqarSequence s = mqar_sequence(options, item);
      ASSERT_EQ(static_cast<std::int64_t>(s.tokens.size()), length);
      ASSERT_EQ(static_cast<std::int64_t>(s.places.size()), pairs);
      std::map<std::uint32_t, std::uint32_t> value;
      for (std::size_t i = 0; i < 2 * static_cast<std::size_t>(pairs); i += 2) value[s.tokens[i]] = s.tokens[i + 1];
      ASSERT_EQ(static_cast<std::int64_t>(value.size()), pairs) << "a key twice";
      std::set<std::uint32_t> asked;
      for (std::size_t i = 0; i < s.places.size(); ++i) {
        const auto place = static_cast<std::size_t>(s.places[i]);
        ASSERT_GE(s.places[i], 2 * pairs);
        ASSERT_EQ(s.expected[i], value.at(s.tokens[place]));
        ASSERT_EQ(s.expected[i], s.tokens[place + 1]);
        asked.insert(s.tokens[place]);
      }
      ASSERT_EQ(static_cast<std::int64_t>(asked.size()), pairs);
      std::int64_t keys = 0;  // in the part behind the pairs: none but those asked for
      for (auto i = 2 * static_cast<std::size_t>(pairs); i < s.tokens.size(); ++i)
        keys += static_cast<std::int64_t>(value.count(s.tokens[i]));
      ASSERT_EQ(keys, pairs);
      for (const auto& [key, v] : value) {
        ASSERT_LT(key, vocab / 2);
        ASSERT_GE(v, vocab / 2);
        ASSERT_LT(v, vocab);
      }
    }
  }
}

TEST(Mqar, BySeedAndItem) {
  MqarOptions options;
  EXPECT_EQ(mqar_sequence(options, 5).tokens, mqar_sequence(options, 5).tokens);
  EXPECT_NE(mqar_sequence(options, 5).tokens, mqar_sequence(options, 6).tokens);
  MqarOptions early = options, other = options;
  other.seed = 1;
  EXPECT_NE(mqar_sequence(options, 5).tokens, mqar_sequence(other, 5).tokens);
  // What is learned from is never what is judged by.
  EXPECT_EQ(mqar_lesson(options, 0, 5).tokens, mqar_lesson(options, 0, 5).tokens);
  EXPECT_NE(mqar_lesson(options, 0, 5).tokens, mqar_lesson(options, 1, 5).tokens);
  EXPECT_NE(mqar_lesson(options, 0, 5).tokens, mqar_sequence(options, 5).tokens);
  early.length = options.length = 2048, early.skew = 100;
  const auto mean = [](const MqarSequence& s) {
    double sum = 0;
    for (const std::int64_t place : s.places) sum += static_cast<double>(place);
    return sum / static_cast<double>(s.places.size());
  };
  EXPECT_LT(mean(mqar_sequence(early, 0)), mean(mqar_sequence(options, 0)) / 2);
}

TEST(Mqar, MistakesAreNamed) {
  MqarOptions options;
  options.length = 63;
  EXPECT_EQ(message_of([&] { check(options); }), "mqar: length is 63, expected at least 64 for 16 pairs");
  options.pairs = 0;
  EXPECT_EQ(message_of([&] { check(options); }), "mqar: pairs is 0, expected at least 1");
  options = {};
  options.vocab_size = 32;
  EXPECT_EQ(message_of([&] { check(options); }), "mqar: vocab_size is 32, expected 34 (for 16 pairs) to 16777216");
  options.vocab_size = 257;
  EXPECT_EQ(message_of([&] { check(options); }),
            "mqar: vocab_size is 257, expected an even number: half of the ids are keys, half values");
}

}  // namespace
}  // namespace mhla
