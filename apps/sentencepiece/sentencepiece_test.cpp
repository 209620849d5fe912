// SentencePiece: a model made here, text there and back.
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>
#include <unistd.h>

#include <fstream>

#include "mhla/core/error.h"
#include "mhla/io/text/text_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

class SentencePieceTest : public testing::Test {
 protected:
  SentencePieceTest() : path_(std::filesystem::path(testing::TempDir()) / str("mhla_sp_", ::getpid(), ".model")) {}
  ~SentencePieceTest() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

class Lines final : public sentencepiece::SentenceIterator {
 public:
  [[nodiscard]] bool done() const override { return at_ == 400; }
  void Next() override { line_ = prose(20, static_cast<std::uint64_t>(++at_)); }
  [[nodiscard]] const std::string& value() const override { return line_; }
  [[nodiscard]] sentencepiece::util::Status status() const override { return {}; }

 private:
  int at_ = 0;
  std::string line_ = prose(20, 0);
};

std::string made_model(const std::string& normalization = "identity", const std::string& strip = "false") {
  Lines lines;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train({{"model_type", "bpe"},
                                                                  {"vocab_size", "600"},
                                                                  {"byte_fallback", "true"},
                                                                  {"normalization_rule_name", normalization},
                                                                  {"remove_extra_whitespaces", strip},
                                                                  {"minloglevel", "2"}},
                                                                 &lines, &model);
  if (!status.ok()) fail(status.ToString());
  return model;
}

TEST_F(SentencePieceTest, ThereAndBack) {
  EXPECT_TRUE(has_sentencepiece());
  std::ofstream(path_, std::ios::binary) << made_model();
  const TokenizerPtr tokenizer = open_tokenizer(path_.string());
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  EXPECT_EQ(tokenizer->vocab_size(), 600);
  const std::string text = prose(30, 77) + " \xe4\xb8\xad  two spaces";
  const std::vector<std::uint32_t> ids = tokenizer->encode(text);
  EXPECT_LT(ids.size(), text.size() * 3 / 4);
  EXPECT_EQ(tokenizer->decode(ids), text);
  std::string joined;  // as it is streamed: each token's own bytes, with the space before the first word
  for (const std::uint32_t id : ids) joined += tokenizer->token_text(id);
  EXPECT_EQ(joined, " " + text);
  ASSERT_EQ(tokenizer->document_opening().size(), 1u);
  EXPECT_EQ(tokenizer->token_text(tokenizer->document_opening()[0]), "<s>");
  EXPECT_EQ(tokenizer->find_special("</s>"), 2u);
  EXPECT_EQ(tokenizer->file_name(), "tokenizer.model");
  tokenizer->save(path_);
  EXPECT_EQ(open_tokenizer(path_.string())->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(message_of([&] { (void)tokenizer->token_text(600); }),
            "tokenizer: id 600 is out of range, expected 0 to 599");
}

// Behind a space the tokens of the parts are those of the whole, within a word the text is.
TEST_F(SentencePieceTest, ATextThatGoesOn) {
  for (const char* strip : {"false", "true"}) {
    std::ofstream(path_, std::ios::binary) << made_model(strip == std::string("true") ? "nmt_nfkc" : "identity", strip);
    const TokenizerPtr tokenizer = open_tokenizer(path_.string());
    const std::string text = prose(12, 5) + "end";
    const std::vector<std::uint32_t> whole = tokenizer->encode(text);
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      if (text[cut - 1] == ' ') continue;  // a space at an end belongs to the word behind it
      std::vector<std::uint32_t> ids = tokenizer->encode(text.substr(0, cut));
      const std::vector<std::uint32_t> more = tokenizer->encode_more(text.substr(cut));
      ids.insert(ids.end(), more.begin(), more.end());
      EXPECT_EQ(tokenizer->decode(ids), text) << cut;
      if (text[cut] == ' ') {
        EXPECT_EQ(ids, whole) << cut;
      }
    }
    EXPECT_TRUE(tokenizer->encode_more("").empty());
  }
  EXPECT_EQ(byte_tokenizer()->encode_more(" a"), byte_tokenizer()->encode(" a"));
}

TEST_F(SentencePieceTest, WhatIsNoUtf8IsRefused) {
  std::ofstream(path_, std::ios::binary) << made_model();
  const TokenizerPtr tokenizer = open_tokenizer(path_.string());
  EXPECT_EQ(message_of([&] { (void)tokenizer->encode("abc \xff\xfe def"); }),
            "sentencepiece: byte 4 of the text is no UTF-8, expected text, or a tokenizer of bytes");
}

TEST_F(SentencePieceTest, WhatIsNoModel) {
  std::ofstream(path_, std::ios::binary) << "no model";
  EXPECT_TRUE(has(message_of([&] { (void)open_tokenizer(path_.string()); }), "is no SentencePiece model"));
}

TEST_F(SentencePieceTest, WithoutItsLibraryOneLineSaysSo) {
  setenv("MHLA_SENTENCEPIECE", "/no/such/library.so", 1);
  std::ofstream(path_, std::ios::binary) << made_model();
  EXPECT_TRUE(
      has(message_of([&] { (void)open_tokenizer(path_.string()); }), "/no/such/library.so could not be opened"));
  unsetenv("MHLA_SENTENCEPIECE");
}

}  // namespace
}  // namespace mhla
