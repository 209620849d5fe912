// Captions as tokens: SANA's instruction, lengths, padding and truncation.
#include "mhla/language/caption_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mhla/io/recorded_arrays_fixture.h"
#include "mhla/io/text/prompt_cleaning.h"
#include "mhla/io/text/sentencepiece.h"
#include "mhla/language/captions_recorded.h"
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
  EXPECT_EQ(some.left_out, (std::vector<std::int64_t>{0, 10, 0}));
}

TEST(CaptionTokens, OfNothingHaveNoInstruction) {
  const CaptionTokens none = caption_tokens(*byte_tokenizer(), {""}, "", 5);
  EXPECT_EQ(none.length, 5);
  EXPECT_EQ(none.mask, (std::vector<std::int64_t>{1, 0, 0, 0, 0}));
  EXPECT_TRUE(has(message_of([] { caption_tokens(*byte_tokenizer(), {"a"}, "", 1); }), "expected at least 2"));
}

// ---- umT5

constexpr const char* kUmt5 = "video/umt5_tokenizer";

TEST(Umt5Captions, HaveTheRecordedTokens) {
  if (!has_sentencepiece()) GTEST_SKIP() << "libmhla_sentencepiece.so is not there";
  expect_recorded_arrays(kUmt5, "tokenizer", captions_recorded(), 0.0);
}

TEST(Umt5Captions, AreCleanedAndEndWithTheirOwnToken) {
  if (!has_sentencepiece()) GTEST_SKIP() << "libmhla_sentencepiece.so is not there";
  const RecordedArraysCase c = read_recorded_arrays(golden_arrays(kUmt5), "tokenizer");
  const RecordedArray& bytes = c.array("in.model", 1, "");
  const TokenizerPtr tokenizer = sentencepiece_tokenizer({bytes.values.begin(), bytes.values.end()}, "model");
  EXPECT_EQ(umt5_caption(*tokenizer, ""), std::vector<std::int64_t>{1});
  EXPECT_EQ(umt5_caption(*tokenizer, "  Tom &amp;amp;\tJerry "), umt5_caption(*tokenizer, "Tom & Jerry"));
  EXPECT_EQ(umt5_caption(*tokenizer, std::string(40, 'x')).size(), 42u);  // not cut: the space, 40 bytes, </s>
  EXPECT_TRUE(has(message_of([] { umt5_caption(*byte_tokenizer(), "a"); }), "has no </s>"));
}

TEST(Umt5Captions, CleaningIsTheRecordedOne) {
  const RecordedArraysCase c = read_recorded_arrays(golden_arrays(kUmt5), "tokenizer");
  const JsonValue::Array &texts = c.config.at("texts").items(), &cleaned = c.config.at("cleaned").items();
  ASSERT_EQ(texts.size(), 12u);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (i == 9) continue;  // text that was decoded by the wrong table, which only ftfy repairs
    EXPECT_EQ(clean_prompt(texts[i].as_string()), cleaned[i].as_string()) << i;
  }
}

}  // namespace
}  // namespace mhla
