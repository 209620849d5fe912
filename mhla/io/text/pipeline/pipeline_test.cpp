// The steps of a tokenizer.json one by one, and what is refused by name. What they make together is checked against
// Hugging Face's tokenizers by pipeline_golden_test.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "mhla/core/error.h"
#include "mhla/io/text/pipeline/pipeline_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla::pipeline {
namespace {

using Ids = std::vector<std::uint32_t>;

TEST(Pipeline, EveryBehaviorOfSplit) {
  const auto by = [](const char* behavior, bool invert = false) {
    return cut(visible_file(nullptr, split_by("String", "-", behavior, invert)), "a--b-c");
  };
  EXPECT_EQ(by("Removed"), "a|b|c");
  EXPECT_EQ(by("Isolated"), "a|-|-|b|-|c");
  EXPECT_EQ(by("MergedWithPrevious"), "a-|-|b-|c");
  EXPECT_EQ(by("MergedWithNext"), "a|-|-b|-c");
  EXPECT_EQ(by("Contiguous"), "a|--|b|-|c");
  EXPECT_EQ(by("Removed", true), "-|-|-");
  EXPECT_EQ(by("MergedWithNext", true), "a-|-|b-|c");
}

TEST(Pipeline, OtherPreTokenizers) {
  const auto by = [](const JsonValue& pre, const char* text) { return cut(visible_file(nullptr, pre), text); };
  EXPECT_EQ(by(step("WhitespaceSplit"), " a\u00a0b. 1"), "a|b.|1");
  EXPECT_EQ(by(step("Digits").set("individual_digits", true), "a12b"), "a|1|2|b");
  EXPECT_EQ(by(step("Digits").set("individual_digits", false), "a12b"), "a|12|b");
  EXPECT_EQ(by(metaspace("always", true), "a b"), "\u2581a|\u2581b");
  EXPECT_EQ(by(metaspace("never", false), " a b"), "\u2581a\u2581b");
  if (!has_icu()) GTEST_SKIP() << "the rest needs ICU, which is optional (Debian: libicu-dev)";
  EXPECT_EQ(by(step("Whitespace"), "a_1, b\u0301!? c"), "a_1|,|b\u0301|!?|c");
  EXPECT_EQ(by(step("Punctuation"), "a, (b)"), "a|,| |(|b|)");
  EXPECT_EQ(by(step("Punctuation").set("behavior", "Contiguous"), "a..b"), "a|..|b");
  EXPECT_EQ(by(step("BertPreTokenizer"), "a, b$"), "a|,|b|$");
}

TEST(Pipeline, Normalizers) {
  const auto by = [](const JsonValue& normalizer, const char* text) {
    return cut(visible_file(normalizer, nullptr), text);
  };
  const auto replace = [](const char* kind, const char* pattern, const char* content) {
    return step("Replace").set("pattern", JsonValue().set(kind, pattern)).set("content", content);
  };
  EXPECT_EQ(by(replace("String", " ", "\u2581"), " a b"), "\u2581a\u2581b");
  EXPECT_EQ(by(step("Prepend").set("prepend", "<"), "a"), "<a");
  EXPECT_EQ(by(step("Strip").set("strip_left", true).set("strip_right", false), " \u3000a "), "a ");
  EXPECT_EQ(by(step("Strip").set("strip_left", false).set("strip_right", true), " a \n"), " a");
  EXPECT_EQ(by(step("Strip").set("strip_left", true).set("strip_right", true), "  "), "");
  if (has_pcre2()) {
    EXPECT_EQ(by(replace("Regex", R"(\s+)", " "), "a\n\nb  c"), "a b c");
    EXPECT_EQ(by(replace("Regex", "x*", "-"), "axb"), "-a-b-");
  }
  if (!has_icu()) GTEST_SKIP() << "the rest needs ICU, which is optional (Debian: libicu-dev)";
  EXPECT_EQ(by(step("NFC"), "xe\u0301\u1112\u1161\u11ab"), "x\u00e9\ud55c");
  EXPECT_EQ(by(step("NFD"), "\u00e9x"), "e\u0301x");
  EXPECT_EQ(by(step("NFKC"), "\ufb01\uff21"), "fiA");
  EXPECT_EQ(by(step("NFKD"), "\u00bd"), "1\u20442");
  EXPECT_EQ(by(step("Lowercase"), "\u0130\u03a3A"), "i\u0307\u03c3a");
  EXPECT_EQ(by(step("StripAccents"), "e\u0301x\u00e9"), "ex\u00e9");
  const JsonValue bert = step("BertNormalizer").set("clean_text", true).set("handle_chinese_chars", true);
  EXPECT_EQ(by(JsonValue(bert).set("lowercase", true), "\u00c9t\u00e9\t\x01\u4e2d"), "ete  \u4e2d ");
  EXPECT_EQ(by(JsonValue(bert).set("lowercase", false), "\u00c9\u200b"), "\u00c9");
}

// Metaspace "first" asks whether a piece begins where the text began: not where something was stripped away.
TEST(Pipeline, TheFirstPieceIsTheOneAtTheBeginningOfTheText) {
  const JsonValue strip = step("Strip").set("strip_left", true).set("strip_right", false);
  EXPECT_EQ(cut(visible_file(nullptr, metaspace("first", true)), "a b"), "\u2581a|\u2581b");
  EXPECT_EQ(cut(visible_file(strip, metaspace("first", true)), " a b"), "a|\u2581b");
  const JsonValue pre = sequence_of("pretokenizers", {split_by("String", "-", "Isolated"), metaspace("first", true)});
  EXPECT_EQ(cut(visible_file(nullptr, pre), "a-b"), "\u2581a|-|b");
  JsonValue file = visible_file(nullptr, metaspace("first", true));
  file.set("added_tokens", JsonValue::array({added_token(512, "<s>", true)}));
  EXPECT_EQ(cut(file, "a<s>b"), "\u2581a|#|b");
}

TEST(Pipeline, AddedTokens) {
  const auto by = [](const JsonValue& token, const char* text, const JsonValue& normalizer = nullptr) {
    return cut(visible_file(normalizer, nullptr).set("added_tokens", JsonValue::array({token})), text);
  };
  EXPECT_EQ(by(added_token(512, "<x>", true), "a <x> b"), "a |#| b");
  EXPECT_EQ(by(added_token(512, "<x>", true, {"lstrip"}), "a  <x> b"), "a|#| b");
  EXPECT_EQ(by(added_token(512, "<x>", true, {"rstrip"}), "a <x>\n\u3000b"), "a |#|b");
  const JsonValue space = step("Replace").set("pattern", JsonValue().set("String", " ")).set("content", "_");
  EXPECT_EQ(by(added_token(512, "a b", false, {"normalized"}), "xa_b", space), "x|#");
  EXPECT_EQ(by(added_token(512, "a b", false), "a_b a b", space), "a_b_|#");
  JsonValue two = visible_file(nullptr, nullptr);  // the longer one
  two.set("added_tokens", JsonValue::array({added_token(512, "<a", false), added_token(513, "<ab>", false)}));
  EXPECT_EQ(open(two)->encode("<ab>"), Ids{513});
  JsonValue special = visible_file(nullptr, nullptr);
  special.set("added_tokens", JsonValue::array({added_token(512, "<s>", true)}));
  EXPECT_EQ(open(special)->encode("<s>").size(), 3u);  // text, unless asked for
  EXPECT_EQ(open(special)->encode("<s>", SpecialText::kParse), Ids{512});
  EXPECT_EQ(open(special)->specials(), (std::vector<SpecialToken>{{512, "<s>", true}}));
  if (!has_icu()) GTEST_SKIP() << "the rest needs ICU, which is optional (Debian: libicu-dev)";
  EXPECT_EQ(by(added_token(512, "xyz", false, {"single_word"}), "xyz axyzb \u00e9xyz xyz"), "#| axyzb \u00e9xyz |#");
}

TEST(Pipeline, OptionsOfTheModel) {
  const auto with = [](std::vector<std::string> tokens, const char* key, const JsonValue& value) {
    JsonValue file = file_of(tokens), model = file.at("model");
    return file.set("model", model.set(key, value));
  };
  EXPECT_EQ(open(with({"a", "b", "b</w>"}, "end_of_word_suffix", "</w>"))->encode("abb"), (Ids{0, 1, 2}));
  EXPECT_EQ(open(with({"a", "##b"}, "continuing_subword_prefix", "##"))->encode("ab"), (Ids{0, 1}));
  EXPECT_EQ(open(with({"a", "?"}, "unk_token", "?"))->encode("xya"), (Ids{1, 1, 0}));
  EXPECT_EQ(open(with({"a"}, "fuse_unk", true))->encode("xya"), (Ids{0}));  // no token: left out
  JsonValue fused = with({"a", "?"}, "unk_token", "?"), model = fused.at("model");
  EXPECT_EQ(open(fused.set("model", model.set("fuse_unk", true)))->encode("xya"), (Ids{1, 0}));
  const JsonValue bytes = with({"a", "<0xC3>", "<0xA9>"}, "byte_fallback", true);
  EXPECT_EQ(open(bytes)->encode("a\u00e9"), (Ids{0, 1, 2}));
  EXPECT_EQ(open(bytes)->encode("\u00ea"), Ids{});  // not all of its bytes have a token
  JsonValue merged = with({"a", "##b", "ab"}, "continuing_subword_prefix", "##"), pairs = merged.at("model");
  merged.set("model", pairs.set("merges", JsonValue::array({JsonValue::array({"a", "##b"})})));
  EXPECT_EQ(open(merged)->encode("ab"), Ids{2});
  JsonValue spaced = file_of({" ", "  ", "   "}), spaces = spaced.at("model");  // tokens with spaces, as pairs
  const JsonValue two = JsonValue::array({" ", " "}), three = JsonValue::array({"  ", " "});
  spaced.set("model", spaces.set("merges", JsonValue::array({two, three})));
  EXPECT_EQ(open(spaced)->encode("   "), Ids{2});
  EXPECT_TRUE(has(message_of([&] { (void)open(with({"a"}, "unk_token", "?"))->encode("b"); }),
                  "\"b\" has no token, and neither has unk_token \"?\""));
  EXPECT_EQ(message_of([&] { (void)open(file_of({"a"}))->encode("ab\xff"); }),
            "tokenizer: byte 2 of the text is no UTF-8, expected text, or a tokenizer of bytes");
}

// A long piece takes another way through the merges than a short one.
TEST(Pipeline, LongPiecesMergeAsShortOnesDo) {
  JsonValue file = file_of({"a", "aa", "aaaa"}), model = file.at("model");
  file.set("model", model.set("merges", JsonValue::array({"a a", "aa aa"})));
  const TokenizerPtr tokenizer = open(file);
  EXPECT_EQ(tokenizer->encode(std::string(63, 'a')).size(), 15u + 2u);
  EXPECT_EQ(tokenizer->encode(std::string(1000, 'a')), Ids(250, 2));
}

TEST(Pipeline, SavedAndNamed) {
  JsonValue file = visible_file(nullptr, step("WhitespaceSplit"));
  const TokenizerPtr tokenizer = open(file);
  const auto path = std::filesystem::path(testing::TempDir()) / str("mhla_pipeline_", ::getpid(), ".json");
  tokenizer->save(path);
  EXPECT_EQ(open_tokenizer(path)->fingerprint(), tokenizer->fingerprint());
  std::filesystem::remove(path);
  EXPECT_NE(open(file.set("decoder", nullptr))->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(tokenizer->vocab_size(), 512);
  EXPECT_EQ(message_of([&] { (void)tokenizer->token_text(512); }),
            "tokenizer: id 512 is out of range, expected 0 to 511");
}

// Without what is put before the first word of a text.
TEST(Pipeline, ATextThatGoesOnGetsNoSpace) {
  const auto more = [](const JsonValue& normalizer, const JsonValue& pre, const char* text) {
    std::string shown;
    for (const std::uint32_t id : open(visible_file(normalizer, pre))->encode_more(text))
      shown += static_cast<char>(id % 256);
    return shown;
  };
  EXPECT_EQ(more(step("Prepend").set("prepend", "_"), nullptr, "a b"), "a b");
  EXPECT_EQ(more(nullptr, metaspace("first", true), "a b"), "a\u2581b");
  EXPECT_EQ(more(nullptr, metaspace("always", true), " a b"), "\u2581a\u2581b");
}

TEST(Pipeline, PostProcessors) {
  JsonValue file = visible_file(nullptr, step("WhitespaceSplit"));
  const JsonValue pair =
      step("BertProcessing").set("sep", JsonValue::array({"b", 98})).set("cls", JsonValue::array({"a", 97}));
  EXPECT_EQ(open(file.set("post_processor", pair))->opening(), Ids{97});
  EXPECT_EQ(open(file)->closing(), Ids{98});
  JsonValue roberta = pair;
  roberta.set("type", "RobertaProcessing").set("trim_offsets", true).set("add_prefix_space", false);
  EXPECT_EQ(open(file.set("post_processor", roberta))->closing(), Ids{98});
  EXPECT_EQ(message_of([&] { open(file.set("post_processor", roberta.set("cls", 7))); }),
            "f: post_processor.cls is 7, expected a token and its id");
}

TEST(Pipeline, RefusedByName) {
  const JsonValue good = visible_file(nullptr, step("WhitespaceSplit"));
  const auto why = [&](const char* key, const JsonValue& value) {
    JsonValue file = good;
    return message_of([&] { open(file.set(key, value)); });
  };
  EXPECT_TRUE(has(why("normalizer", step("Precompiled")), "f: normalizer is \"Precompiled\", expected NFC, "));
  EXPECT_TRUE(
      has(why("pre_tokenizer", step("UnicodeScripts")), "f: pre_tokenizer is \"UnicodeScripts\", expected Split"));
  EXPECT_TRUE(has(why("decoder", step("WordPiece")), "f: decoder is \"WordPiece\", expected ByteLevel"));
  EXPECT_TRUE(has(why("decoder", step("CTC")), "f: decoder is \"CTC\""));
  EXPECT_TRUE(has(why("post_processor", step("Other")), "f: post_processor is \"Other\", expected ByteLevel"));
  EXPECT_EQ(why("model", step("Unigram")), "f: model is \"Unigram\", expected BPE");
  EXPECT_EQ(why("model", step("WordPiece")), "f: model is \"WordPiece\", expected BPE");
  EXPECT_TRUE(has(why("truncation", 7), "f: the file.truncation is 7, expected null"));
  EXPECT_EQ(why("extra", 7), "f: the file has \"extra\", which is not known here");
  EXPECT_EQ(why("normalizer", step("Strip").set("left", true)), "f: normalizer has \"left\", which is not known here");
  EXPECT_TRUE(
      has(why("pre_tokenizer", split_by("String", "a", "Sideways")), "behavior is \"Sideways\", expected Removed"));
  EXPECT_TRUE(has(why("pre_tokenizer", split_by("String", "", "Removed")), "pattern.String is empty"));
  EXPECT_TRUE(
      has(why("pre_tokenizer", split_by("Regex", "(?<=", "Removed")), "f: byte 0 of the pattern opens a group"));
  EXPECT_TRUE(has(why("pre_tokenizer", metaspace("sometimes", true)), "prepend_scheme is \"sometimes\""));
  const JsonValue fuse = step("Fuse"), bytes = step("ByteFallback");
  EXPECT_EQ(why("decoder", sequence_of("decoders", {fuse, bytes})),
            "f: decoder ByteFallback stands behind Fuse or ByteLevel, where expected is Strip alone");
  const auto token = [&](const JsonValue& one) { return why("added_tokens", JsonValue::array({one})); };
  EXPECT_EQ(token(added_token(3, "<s>", true)), "f: tokens \"<s>\" and \"\u0103\" have both id 3");
  EXPECT_EQ(token(added_token(9999, "<s>", true)), "f: token \"<s>\" has id 9999, expected 0 to 2049");
  EXPECT_EQ(token(added_token(512, "", true)), "f: added token 512 is empty");
  EXPECT_EQ(token(added_token(512, "!", true)), "f: added token \"!\" has id 512, in the vocabulary it is 33");
  JsonValue model = good.at("model");
  EXPECT_TRUE(has(why("model", model.set("dropout", 0.1)), "f: model.dropout is 0.1"));
  model = good.at("model");
  EXPECT_EQ(why("model", model.set("merges", JsonValue::array({"a q q"}))),
            "f: merge 0 is \"a q q\", expected two tokens of the vocabulary");
  EXPECT_EQ(why("model", model.set("merges", JsonValue::array({"a b"}))), "f: merge 0 makes \"ab\", which is no token");
  JsonValue deep = step("WhitespaceSplit");
  for (int i = 0; i < 20; ++i) deep = sequence_of("pretokenizers", {deep});
  EXPECT_EQ(why("pre_tokenizer", deep), "f: pre_tokenizer is nested more than 16 deep");
}

// What needs a library opens where it is, and names it where it is not.
TEST(Pipeline, MissingLibrariesAreNamed) {
  EXPECT_EQ(message_of([] { open(visible_file(step("NFC"), nullptr)); }),
            has_icu() ? "nothing was thrown"
                      : "f: normalizer NFC needs ICU, which this build does not have (Debian: libicu-dev)");
  EXPECT_EQ(message_of([] { open(visible_file(nullptr, split_by("Regex", "a+", "Removed"))); }),
            has_pcre2() ? "nothing was thrown"
                        : "f: pattern \"a+\" needs PCRE2, which this build does not have (Debian: libpcre2-dev)");
}

}  // namespace
}  // namespace mhla::pipeline
