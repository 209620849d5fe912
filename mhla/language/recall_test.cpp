#include "mhla/language/recall.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "mhla/core/error.h"
#include "mhla/language/fake_model_fixture.h"
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
  early.length = options.length = 2048, early.skew = 100;
  const auto mean = [](const MqarSequence& s) {
    double sum = 0;
    for (const std::int64_t place : s.places) sum += static_cast<double>(place);
    return sum / static_cast<double>(s.places.size());
  };
  EXPECT_LT(mean(mqar_sequence(early, 0)), mean(mqar_sequence(options, 0)) / 2);
}

TEST(Mqar, CountsWhatIsFoundAgain) {
  FakeModel model;
  model.on_likeliest = [](std::span<const std::uint32_t> tokens, std::int64_t place) -> std::uint32_t {
    for (std::size_t i = 0;; i += 2)  // finds values of even keys alone
      if (tokens[i] == tokens[static_cast<std::size_t>(place)]) return tokens[i] % 2 == 0 ? tokens[i + 1] : 0u;
  };
  MqarOptions options;
  options.vocab_size = 200, options.length = 100, options.pairs = 20;
  std::int64_t even = 0;
  for (int item = 0; item < 4; ++item) {
    const MqarSequence s = mqar_sequence(options, item);
    for (const std::int64_t place : s.places) even += s.tokens[static_cast<std::size_t>(place)] % 2 == 0 ? 1 : 0;
  }
  EXPECT_DOUBLE_EQ(run_mqar(options, 4, model).figures[0].value, static_cast<double>(even) / 80.0);
  options.vocab_size = 300;
  EXPECT_EQ(message_of([&] { (void)run_mqar(options, 1, model); }), "mqar: vocab_size is 300, the model has 257");
}

TEST(Mqar, MistakesAreNamed) {
  MqarOptions options;
  options.length = 63;
  EXPECT_EQ(message_of([&] { check(options); }), "mqar: length is 63, expected at least 64 for 16 pairs");
  options.pairs = 0;
  EXPECT_EQ(message_of([&] { check(options); }), "mqar: pairs is 0, expected at least 1");
  options = {};
  options.vocab_size = 33;
  EXPECT_EQ(message_of([&] { check(options); }), "mqar: vocab_size is 33, expected 34 (for 16 pairs) to 16777216");
}

TEST(Needle, AsLongAsAskedForAtItsDepth) {
  const TokenizerPtr bytes = byte_tokenizer();
  for (const std::int64_t length : {400, 1000, 5000})
    for (const double depth : {0.0, 0.3, 1.0}) {
      NeedleOptions options;
      options.length = length, options.depth = depth;
      const NeedleItem item = needle_item(options, 7, *bytes);
      EXPECT_LE(static_cast<std::int64_t>(item.prompt.size()), length);
      EXPECT_GT(static_cast<std::int64_t>(item.prompt.size()), length - 60);  // a sentence less at most
      EXPECT_EQ(item.answer.size(), 5u);
      const std::size_t at = item.prompt.find(item.answer);
      ASSERT_NE(at, std::string::npos);
      EXPECT_EQ(item.prompt.find(item.answer, at + 1), std::string::npos);
      const std::size_t before = at - std::string("There are numbers to remember in this text. ").size(),
                        behind = item.prompt.find('\n') - at;
      if (depth == 0.0) {  // nothing but the words of the needle itself
        EXPECT_LT(before, 60u);
      }
      if (depth == 1.0) {
        EXPECT_LT(behind, 10u);
      }
      if (length == 5000) {
        EXPECT_NEAR(static_cast<double>(before) / static_cast<double>(before + behind), depth, 0.02);
      }
    }
  NeedleOptions options;
  options.length = 50;
  EXPECT_TRUE(
      has(message_of([&] { (void)needle_item(options, 0, *bytes); }), "needle: length is 50, expected at least"));
  options.needles = 25;
  EXPECT_EQ(message_of([&] { (void)needle_item(options, 0, *bytes); }), "needle: needles is 25, expected 1 to 24");
}

TEST(Needle, AModelThatReadsFindsItAndOneThatGuessesDoesNot) {
  FakeModel reader;
  reader.on_generate = [](const std::string& prompt) {
    const std::string ask = "What is the number of ";
    const std::size_t at = prompt.rfind(ask) + ask.size();
    const std::string fact = str("the number of ", prompt.substr(at, prompt.find('?', at) - at), " is ");
    return str(" ", prompt.substr(prompt.find(fact) + fact.size(), 5), ".");
  };
  NeedleOptions options;
  options.length = 2000, options.needles = 8;
  EXPECT_DOUBLE_EQ(run_needles(options, 11, reader).figures[0].value, 1.0);
  EXPECT_EQ(run_needles(options, 1, reader).task, "needle");
  FakeModel last;  // the number that stands last in the text
  last.on_generate = [](const std::string& prompt) {
    const std::size_t at = prompt.find_last_of("0123456789");
    return prompt.substr(at - 4, 5);
  };
  EXPECT_LT(run_needles(options, 11, last).figures[0].value, 0.5);
  last.on_generate = [](const std::string&) { return std::string("many"); };
  EXPECT_DOUBLE_EQ(run_needles(options, 3, last).figures[0].value, 0.0);
}

}  // namespace
}  // namespace mhla
