// Patterns of Oniguruma through PCRE2: what they match (as tokenizers 0.23 has it), what is refused, and what is
// stopped.
#include "mhla/io/text/pipeline/regex.h"

#include <gtest/gtest.h>

#include "mhla/io/text/pipeline/regex_syntax.h"
#include "mhla/io/text/tokenizer.h"
#include "mhla/testing/messages.h"

namespace mhla::pipeline {
namespace {

using Texts = std::vector<std::string>;

std::vector<Span> spans_of(const std::string& pattern, const std::string& text, const RegexLimits& limits = {}) {
  std::vector<Span> matches;
  Regex(pattern).find_all(text, RegexBudget(text.size(), limits), matches);
  return matches;
}

Texts found(const std::string& pattern, const std::string& text) {
  Texts texts;
  for (const Span& span : spans_of(pattern, text)) texts.push_back(text.substr(span.begin, span.end - span.begin));
  return texts;
}

class RegexTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_pcre2()) GTEST_SKIP() << "needs PCRE2, which is optional (Debian: libpcre2-dev)";
  }
};

TEST_F(RegexTest, SetsAreThoseOfOniguruma) {
  EXPECT_EQ(found(R"(\s)", "a\u180eb\u00a0c\u3000"), (Texts{"\u00a0", "\u3000"}));
  EXPECT_EQ(found(R"(\w+)", "caf\u0065\u0301 x\u00b2_\u2074"), (Texts{"caf\u0065\u0301", "x\u00b2_"}));
  EXPECT_EQ(found(R"(\h+)", "xyzBEEF\t0g"), (Texts{"BEEF", "0"}));
  EXPECT_EQ(found(R"(\v)", "\n\v\r"), (Texts{"\v"}));
  EXPECT_EQ(found(R"(\bz)", "a-z \u00e9z z"), (Texts{"z", "z"}));
  EXPECT_EQ(found(R"(\p{Letter}+|\p{^L})", "ab1"), (Texts{"ab", "1"}));
  EXPECT_EQ(found(R"(\p{Han})", "\u4e2d\u30fc"), (Texts{"\u4e2d"}));  // U+30FC is Han by extension only
  EXPECT_EQ(found(R"([[:punct:]]+)", "a$+,b"), (Texts{"$+,"}));
}

TEST_F(RegexTest, ClassesInsideOfClasses) {
  EXPECT_EQ(found(R"( ?[^(\s|[.,])]+)", "Hi (there|you), ok."), (Texts{"Hi", "there", "you", " ok"}));
  EXPECT_EQ(found(R"([a-z&&[^aeiou]]+)", "hello"), (Texts{"h", "ll"}));
  EXPECT_EQ(found(R"([^a-z&&[^aeiou]]+)", "hello"), (Texts{"e", "o"}));
  EXPECT_EQ(found(R"([^\W\d_]+)", "ab_1c-d"), (Texts{"ab", "c", "d"}));
  EXPECT_EQ(found(R"([\w]+)", "x\u00b2"), (Texts{"x"}));  // unlike \w outside of brackets
  EXPECT_EQ(found(R"([\W_]+)", "ab_ -c"), (Texts{"_ -"}));
  EXPECT_EQ(found("[a-c-e]+", "ad-e"), (Texts{"a", "-e"}));
  EXPECT_EQ(found(R"([\]\-\\^]+)", "a]-\\^b"), (Texts{"]-\\^"}));
}

TEST_F(RegexTest, RepetitionsAndLines) {
  EXPECT_EQ(found("a{2}+", "aaaaa"), (Texts{"aaaa"}));
  EXPECT_EQ(found("a{1,2}+b", "aaaab"), (Texts{"aaaab"}));
  EXPECT_EQ(found("a{2}?b", "aaaab"), (Texts{"aab"}));
  EXPECT_EQ(found("a{1,3}?", "aa"), (Texts{"a", "a"}));
  EXPECT_EQ(found("ba{,2}", "baaa"), (Texts{"baa"}));
  EXPECT_EQ(found("a{x}|a{", "a{x}a{b"), (Texts{"a{x}", "a{"}));
  EXPECT_EQ(found("^a$", "a\na\n"), (Texts{"a", "a"}));
  EXPECT_EQ(found("a.b", "a\nb"), (Texts{}));
  EXPECT_EQ(found("(?m)a.b", "a\nb"), (Texts{"a\nb"}));
  EXPECT_EQ(found(R"((a|b)\1)", "abba"), (Texts{"bb"}));
  EXPECT_EQ(found("(?i:[sdmt])", "a\u017fT"), (Texts{"\u017f", "T"}));
  EXPECT_EQ(found(R"(\u00e9|\x{4e2d}|\x41)", "\u00e9\u4e2d\u0041"), (Texts{"\u00e9", "\u4e2d", "A"}));
}

TEST_F(RegexTest, EmptyMatchesAsTheOriginalCountsThem) {
  EXPECT_EQ(spans_of("x*", "axxb"), (std::vector<Span>{{0, 0}, {1, 3}, {4, 4}}));
  EXPECT_EQ(spans_of(R"(\b)", "ab c"), (std::vector<Span>{{0, 0}, {2, 2}, {3, 3}, {4, 4}}));
  EXPECT_EQ(spans_of("", "\u00e9"), (std::vector<Span>{{0, 0}, {2, 2}}));
}

TEST_F(RegexTest, FarApartMatchesAreFound) {
  std::string text;
  for (int i = 0; i < 12; ++i) text += std::string(std::size_t{1} << i, '-') + "\u00e9\u00e9\u00e9";
  EXPECT_EQ(found("\u00e9+", text).size(), 12u);
  EXPECT_EQ(found("x", std::string(1 << 20, '-')).size(), 0u);
}

TEST_F(RegexTest, HostilePatternsAndTextsStopAtALimit) {
  const std::string many(40, 'a'), blocks = [] {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += std::string(16, 'a') + "-";
    return text;
  }();
  RegexLimits limits;
  limits.steps = 100000;
  EXPECT_TRUE(has(message_of([&] { spans_of("(?:a|aa)+$", many + "-", limits); }),
                  "needs more than 100000 steps behind byte 0 of the text (PCRE2's match limit)"));
  limits.steps = 50'000'000;
  limits.seconds = 0.05;
  const std::string slow = message_of([&] { spans_of("(?:a|a)+b", blocks + "b", limits); });
  EXPECT_TRUE(has(slow, "passed the limit of 0.051")) << slow;
  EXPECT_TRUE(has(message_of([] { Regex("(?:(?:a{60000}){60000}){60000}"); }), "is refused by PCRE2"));
}

TEST(RegexSyntax, RefusedByName) {
  const auto why = [](const std::string& pattern) { return message_of([&] { to_pcre(pattern); }); };
  EXPECT_EQ(why(R"(\Qa)"), "\\Qa at byte 0 of the pattern is not supported");
  EXPECT_EQ(why(R"(ab\K)"), "\\K at byte 2 of the pattern is not supported");
  EXPECT_EQ(why("(?x) a"), "(?x) a at byte 0 of the pattern is not supported");
  EXPECT_EQ(why("(?<name>a)"), "(?<name>a) at byte 0 of the pattern is not supported");
  EXPECT_EQ(why("(*FAIL)"), "(*FAIL) at byte 0 of the pattern is not supported");
  EXPECT_EQ(why("a(?i)b|c"), "(?i)b|c at byte 1 of the pattern sets options in the middle of a group");
  EXPECT_TRUE(has(why("(?i:ss)"), "two letters that one character folds to"));
  EXPECT_TRUE(has(why(R"((?i)\p{Lu})"), "upper or lower case under (?i)"));
  EXPECT_TRUE(has(why("a**"), "repeats nothing that can be repeated"));
  EXPECT_TRUE(has(why("+a"), "repeats nothing that can be repeated"));
  EXPECT_TRUE(has(why("(?=a)*"), "repeats nothing that can be repeated"));
  EXPECT_TRUE(has(why("a{3,1}"), "has its limits the wrong way round"));
  EXPECT_TRUE(has(why("a{70000}"), "repeats more than 65535 times"));
  EXPECT_TRUE(has(why(R"(\1(a))"), "does not refer to a group"));
  EXPECT_TRUE(has(why(R"(\xE9)"), "a byte, not a character"));
  EXPECT_TRUE(has(why(R"(\pL)"), "opens no property"));
  EXPECT_TRUE(has(why(R"(\p{L&})"), "is not known"));
  EXPECT_TRUE(has(why("[[:foo:]]"), "[:foo:] is not known"));
  EXPECT_TRUE(has(why(R"([\d-x])"), "a range that opens with no character"));
  EXPECT_TRUE(has(why("[z-a]"), "a range that is empty"));
  EXPECT_TRUE(has(why("[]a]"), "empty or begins with ]"));
  EXPECT_TRUE(has(why("[a"), "is not closed"));
  EXPECT_TRUE(has(why("(a"), "is not closed"));
  EXPECT_TRUE(has(why("a)"), "was not opened"));
  EXPECT_TRUE(has(why("a\\"), "ends in a backslash"));
  EXPECT_TRUE(has(why(std::string(70000, 'a')), "70000 bytes, expected at most 65536"));
  if (has_pcre2()) {
    EXPECT_TRUE(has(message_of([] { Regex(R"(\p{Klingon})"); }), "is refused by PCRE2: unknown property"));
    EXPECT_TRUE(has(message_of([] { Regex(R"((?<=a+)b)"); }), "is refused by PCRE2: lookbehind"));
  }
}

TEST(RegexSyntax, WithoutPcreThePatternIsRefusedNamingIt) {
  if (has_pcre2()) GTEST_SKIP() << "this build has PCRE2";
  EXPECT_TRUE(has(message_of([] { Regex("a+"); }), "needs PCRE2, which this build does not have"));
}

}  // namespace
}  // namespace mhla::pipeline
