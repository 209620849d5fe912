// Tokens back to text: each decoder at the beginning, in the middle and at the end, and token by token.
#include "mhla/io/text/pipeline/decoders.h"

#include <gtest/gtest.h>

#include "mhla/io/text/pipeline/pipeline_fixture.h"

namespace mhla::pipeline {
namespace {

using Tokens = std::vector<std::string>;

std::string decoded(const JsonValue& decoder, const Tokens& tokens) {
  return TokenDecoder(decoder.is_null() ? nullptr : &decoder).decode(tokens, RegexBudget(0, {}));
}

JsonValue llama() {
  const JsonValue mark = step("Replace").set("pattern", JsonValue().set("String", "\u2581")).set("content", " ");
  const JsonValue strip = step("Strip").set("content", " ").set("start", 1).set("stop", 0);
  return sequence_of("decoders", {mark, step("ByteFallback"), step("Fuse"), strip});
}

TEST(Decoders, WholeTexts) {
  EXPECT_EQ(decoded(nullptr, {"a", "b"}), "a b");
  EXPECT_EQ(decoded(step("BPEDecoder").set("suffix", "</w>"), {"a", "b</w>", "c</w>"}), "ab c");
  EXPECT_EQ(decoded(metaspace("always", true), {"\u2581a", "\u2581b"}), "a b");
  EXPECT_EQ(decoded(metaspace("never", true), {"\u2581a", "\u2581b"}), " a b");
  EXPECT_EQ(decoded(byte_level(true), {"\u0120a", "\u00c3", "\u00a9"}), " a\u00e9");
  EXPECT_EQ(decoded(byte_level(true), {"\u4e2d"}), "\u4e2d");  // no letters of bytes: as it is
  EXPECT_EQ(decoded(llama(), {"\u2581a", "\u2581\u2581b", "<0xC3>", "<0xA9>", "<0xFG>"}), "a  b\u00e9<0xFG>");
  EXPECT_EQ(decoded(llama(), {"<0xC3>", "x", "<0xC3>", "<0xC3>"}), "\ufffdx\ufffd\ufffd");
  const JsonValue strip = step("Strip").set("content", "_").set("start", 2).set("stop", 1);
  EXPECT_EQ(decoded(strip, {"___a__", "b", "_"}), "_a_b");
  EXPECT_EQ(decoded(llama(), {}), "");
}

// A stream shows a token when it comes: the space that ends a word comes with the next one.
TEST(Decoders, TextAsItGrows) {
  const auto grown = [](const TokenizerPtr& tokenizer, const std::vector<std::uint32_t>& ids) {
    Tokens pieces;
    for (std::size_t i = 1; i < ids.size(); ++i) pieces.push_back(tokenizer->text_after(ids[i - 1], ids[i]));
    return pieces;
  };
  JsonValue file = file_of({"a", "b</w>", "c</w>", "<s>"});
  file.set("decoder", step("BPEDecoder").set("suffix", "</w>"));
  file.set("added_tokens", JsonValue::array({added_token(3, "<s>", true)}));
  const TokenizerPtr words = open(file);
  EXPECT_EQ(grown(words, {3, 0, 1, 2, 0}), (Tokens{"a", "b", " c", " a"}));
  EXPECT_EQ(words->decode(std::vector<std::uint32_t>{0, 1, 2}), "ab c");
  EXPECT_EQ(grown(open(file.set("decoder", nullptr)), {0, 1}), (Tokens{" b</w>"}));
  JsonValue bytes = file_of({"\u2581a", "<0xC3>", "<0xA9>", "\u2581b"});
  const TokenizerPtr tokenizer = open(bytes.set("decoder", llama()));
  EXPECT_EQ(grown(tokenizer, {0, 1, 2, 3, 0}), (Tokens{"\xc3", "\xa9", " b", " a"}));  // half a character is held back
  EXPECT_EQ(tokenizer->decode(std::vector<std::uint32_t>{0, 1, 2, 3}), "a\u00e9 b");
  EXPECT_EQ(tokenizer->token_text(0), " a");
}

}  // namespace
}  // namespace mhla::pipeline
