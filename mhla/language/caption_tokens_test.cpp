// Captions as tokens: SANA's instruction, lengths, padding and truncation.
#include "mhla/language/caption_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mhla/testing/messages.h"

namespace mhla {
namespace {

TEST(CaptionTokens, InstructionIsThePublishedOne) {
  const std::string_view text = sana_instruction();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7);
  EXPECT_TRUE(text.starts_with("Given a user prompt, generate an \"Enhanced prompt\" that"));
  EXPECT_TRUE(text.ends_with("\nUser Prompt: "));
  EXPECT_EQ(text.size(), 1057u);
}

TEST(CaptionTokens, ArePaddedAndCutToOneLength) {
  const TokenizerPtr bytes = byte_tokenizer();  // one token a byte, and one to open with
  const CaptionTokens some = caption_tokens(*bytes, {"ab", "a long caption", ""}, "In: ", 6);
  EXPECT_EQ(some.captions, 3);
  EXPECT_EQ(some.length, 1 + 4 + 6 - 2);
  const std::vector<std::int64_t> want{256, 'I', 'n', ':', ' ', 'a', 'b', 0,   0,    //
                                       256, 'I', 'n', ':', ' ', 'a', ' ', 'l', 'o',  // cut
                                       256, 'I', 'n', ':', ' ', 0,   0,   0,   0};
  EXPECT_EQ(some.ids, want);
  EXPECT_EQ(some.mask, (std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1, 0, 0,  //
                                                  1, 1, 1, 1, 1, 1, 1, 1, 1,  //
                                                  1, 1, 1, 1, 1, 0, 0, 0, 0}));
}

TEST(CaptionTokens, OfNothingHaveNoInstruction) {
  const CaptionTokens none = caption_tokens(*byte_tokenizer(), {""}, "", 5);
  EXPECT_EQ(none.length, 5);
  EXPECT_EQ(none.mask, (std::vector<std::int64_t>{1, 0, 0, 0, 0}));
  EXPECT_TRUE(has(message_of([] { caption_tokens(*byte_tokenizer(), {"a"}, "", 1); }), "expected at least 2"));
}

}  // namespace
}  // namespace mhla
