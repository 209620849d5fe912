// The published patterns on the cases where they are hard to follow, and what holds for any bytes.
#include "mhla/io/text/pieces.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

namespace mhla {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(PieceRule rule, std::string_view text) {
  Pieces pieces;
  while (!text.empty()) {
    const std::size_t length = piece_length(rule, text);
    pieces.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return pieces;
}

TEST(Pieces, Gpt2) {
  const auto cut = [](std::string_view text) { return pieces_of(PieceRule::kGpt2, text); };
  EXPECT_EQ(cut("Hello world"), (Pieces{"Hello", " world"}));
  EXPECT_EQ(cut("it's we'll I'VE"), (Pieces{"it", "'s", " we", "'ll", " I", "'", "VE"}));
  EXPECT_EQ(cut(" 's"), (Pieces{" '", "s"}));
  EXPECT_EQ(cut("a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(cut("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(cut("a \n\n b  "), (Pieces{"a", " \n\n", " b", "  "}));
  EXPECT_EQ(cut("a\nb"), (Pieces{"a", "\n", "b"}));
  EXPECT_EQ(cut("a\n\nb"), (Pieces{"a", "\n", "\n", "b"}));
  EXPECT_EQ(cut("x=12345;"), (Pieces{"x", "=", "12345", ";"}));
  EXPECT_EQ(cut(" \xc3\xa9t\xc3\xa9\xc2\xa0 z"), (Pieces{" \xc3\xa9t\xc3\xa9", "\xc2\xa0", " z"}));  // a no-break space
  EXPECT_EQ(cut("\xe4\xb8\xad\xe6\x96\x87\xe3\x80\x82"), (Pieces{"\xe4\xb8\xad\xe6\x96\x87", "\xe3\x80\x82"}));
  EXPECT_EQ(cut("a\xff\xfe b\xc3"), (Pieces{"a", "\xff\xfe", " b", "\xc3"}));  // no UTF-8
}

TEST(Pieces, Llama3) {
  const auto cut = [](std::string_view text) { return pieces_of(PieceRule::kLlama3, text); };
  EXPECT_EQ(cut("I'VE it's"), (Pieces{"I", "'VE", " it", "'s"}));
  EXPECT_EQ(cut("a'\xc5\xbfx"), (Pieces{"a", "'\xc5\xbf", "x"}));  // a long s: the pattern does not look at case
  EXPECT_EQ(cut("x=1234567"), (Pieces{"x", "=", "123", "456", "7"}));
  EXPECT_EQ(cut("(word) \"a"), (Pieces{"(word", ")", " \"", "a"}));
  EXPECT_EQ(cut("end.\n\nNext"), (Pieces{"end", ".\n\n", "Next"}));
  EXPECT_EQ(cut("a \n \n  b"), (Pieces{"a", " \n \n", " ", " b"}));
  EXPECT_EQ(cut("a\tb"), (Pieces{"a", "\tb"}));
  EXPECT_EQ(cut("  12"), (Pieces{" ", " ", "12"}));
}

TEST(Pieces, DigitsApart) {
  const auto each = [](std::string_view text) { return pieces_of(PieceRule::kDigits, text); };
  const auto runs = [](std::string_view text) { return pieces_of(PieceRule::kNumbers, text); };
  EXPECT_EQ(each("in 1984, x=12"), (Pieces{"in", " ", "1", "9", "8", "4", ",", " x", "=", "1", "2"}));
  EXPECT_EQ(runs("in 1984, x=12"), (Pieces{"in", " ", "1984", ",", " x", "=", "12"}));
  EXPECT_EQ(each("a   1  b"), (Pieces{"a", "   ", "1", " ", " b"}));  // what stands before a digit ends there
  EXPECT_EQ(runs("a   1  b"), (Pieces{"a", "   ", "1", " ", " b"}));
  EXPECT_EQ(runs("a   b"), (Pieces{"a", "  ", " b"}));
  EXPECT_EQ(each("\n\n7's"), (Pieces{"\n\n", "7", "'s"}));
  EXPECT_EQ(each("\xc2\xbd\xd9\xa3 \xe2\x85\xa7"),
            (Pieces{"\xc2\xbd", "\xd9\xa3", " ", "\xe2\x85\xa7"}));  // 1/2, 3, VIII
  EXPECT_EQ(runs("\xc2\xbd\xd9\xa3 \xe2\x85\xa7"), (Pieces{"\xc2\xbd\xd9\xa3", " ", "\xe2\x85\xa7"}));
}

RC_GTEST_PROP(Pieces, AreTheTextWhateverItsBytes, (const std::string& text)) {
  for (const PieceRule rule :
       {PieceRule::kGpt2, PieceRule::kLlama3, PieceRule::kWhole, PieceRule::kDigits, PieceRule::kNumbers}) {
    std::string joined;
    for (const std::string& piece : pieces_of(rule, text)) {
      RC_ASSERT(!piece.empty());
      joined += piece;
    }
    RC_ASSERT(joined == text);
  }
}

}  // namespace
}  // namespace mhla
