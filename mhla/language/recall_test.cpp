#include "mhla/language/recall.h"

#include <gtest/gtest.h>

#include "mhla/core/error.h"
#include "mhla/language/fake_model_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

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
