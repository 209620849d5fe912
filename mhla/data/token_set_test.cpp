#include "mhla/data/token_set.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "mhla/data/data_fixture.h"
#include "mhla/io/text/bpe.h"

namespace mhla {
namespace {

// Twelve documents of different lengths as lines of JSON.
std::string lines() {
  std::string text;
  for (int i = 0; i < 12; ++i)
    text += str("{\"text\": \"document ", i, std::string(static_cast<std::size_t>(i), 'x'), "\"}\n");
  return text;
}

std::string text_of(const TokenSet& set, std::int64_t document) {
  const std::int64_t begin = set.document_begin(document), count = set.document_begin(document + 1) - begin;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  set.copy(begin, count, tokens.data());
  return set.tokenizer()->decode(std::vector<std::uint32_t>(tokens.begin(), tokens.end()));
}

TEST(TokenSet, HoldsTheCorpus) {
  for (const char* tokenizer : {"bytes", "train:280"})
    for (const std::int64_t shard_tokens : {1, 30, 1 << 20}) {
      const ScratchFolder folder;
      folder.write_text("in/a.jsonl", lines());
      folder.write_text("in/b.txt", "");
      TokenizeOptions options;
      options.data = folder.path("in");
      options.out = folder.path("out");
      options.tokenizer = tokenizer;
      options.valid = 0.25;
      options.shard_tokens = shard_tokens;
      const TokenSetInfo info = tokenize_corpus(options);
      EXPECT_EQ(info.empty, (std::vector<std::string>{folder.path("in/b.txt")}));
      const TokenSet train = TokenSet::open(options.out), valid = TokenSet::open(options.out, true);
      train.verify();
      EXPECT_EQ(train.documents(), 9);
      EXPECT_EQ(valid.documents(), 3);
      EXPECT_EQ(info.train.shards.size(), shard_tokens == 1 ? 9u : info.train.shards.size());
      int t = 0, v = 0;
      for (int i = 0; i < 12; ++i) {
        const std::string want = str("<|endoftext|>document ", i, std::string(static_cast<std::size_t>(i), 'x'));
        EXPECT_EQ(i % 4 == 3 ? text_of(valid, v++) : text_of(train, t++), want);
      }
      std::vector<std::int64_t> all(static_cast<std::size_t>(train.tokens()));
      train.copy(0, train.tokens(), all.data());
      EXPECT_EQ(std::count(all.begin(), all.end(), 256), 9);  // through all shards
    }
}

TEST(TokenSet, HoldsOutOneOfAFew) {
  const ScratchFolder folder;
  TokenizeOptions options;
  options.data = folder.path("in"), options.valid = 0.01;
  folder.write_text("in/a.txt", "first"), folder.write_text("in/b.txt", "second");
  options.out = folder.path("two");
  EXPECT_FALSE(tokenize_corpus(options).valid_tail);
  EXPECT_EQ(text_of(TokenSet::open(options.out), 0), "<|endoftext|>first");
  EXPECT_EQ(text_of(TokenSet::open(options.out, true), 0), "<|endoftext|>second");
  // Of a single one the last lines, or words, or characters, whichever end where the part begins.
  const auto tail = [&](const std::string& text, double valid) {
    static int count = 0;
    folder.write_text("one.txt", text);
    options.data = folder.path("one.txt"), options.valid = valid, options.out = folder.path(str("one", count++));
    EXPECT_TRUE(tokenize_corpus(options).valid_tail);
    const TokenSet train = TokenSet::open(options.out), held_out = TokenSet::open(options.out, true);
    EXPECT_TRUE(train.info().valid_tail);
    EXPECT_EQ(train.documents(), 1);
    EXPECT_EQ(held_out.documents(), 1);
    const std::string head = text_of(train, 0).substr(kEndOfText.size()), rest = text_of(held_out, 0);
    EXPECT_EQ(head + rest.substr(kEndOfText.size()), text);
    return rest.substr(kEndOfText.size());
  };
  EXPECT_EQ(tail("one\ntwo\nthree\nfour\n", 0.25), "four\n");
  EXPECT_EQ(tail("one\ntwo\nthree\nfour\n", 0.3), "three\nfour\n");
  EXPECT_EQ(tail("one long line of many words", 0.1), "words");
  EXPECT_EQ(tail("\u00e9\u00e9\u00e9\u00e9", 0.01), "\u00e9");
  folder.write_text("one.txt", "x");
  options.out = folder.path("none");
  EXPECT_EQ(
      message_of([&] { tokenize_corpus(options); }),
      "tokenize: " + options.data + " is one document of 1 bytes, of which none can be held out, expected valid 0");
}

TEST(TokenSet, NothingStaysOfWhatFailedOrWasKilled) {
  const ScratchFolder folder;
  folder.write_text("in/a.txt", "text"), folder.write_text("in/b.jsonl", "{\"text\": \"more\"}\n{\"no\": 1}\n");
  TokenizeOptions options;
  options.data = folder.path("in"), options.out = folder.path("new/out"), options.shard_tokens = 1;
  const auto fails = [&] { EXPECT_TRUE(has(message_of([&] { tokenize_corpus(options); }), "line 2: no text")); };
  fails();
  EXPECT_FALSE(std::filesystem::exists(folder.path("new")));
  // Shards and parts of a killed one go as well, and nothing else does.
  for (const char* name : {"train-00007.tokens", "valid-00000.tokens.part12-3", "dataset.json.part12-4",
                           "train-x.tokens", "train-00001.tokens.mine", "notes.txt"})
    folder.write_text(str("old/", name), "x");
  const auto left = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path("old")))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  };
  options.out = folder.path("old");
  fails();
  EXPECT_EQ(left(), (std::vector<std::string>{"notes.txt", "train-00001.tokens.mine", "train-x.tokens"}));
  folder.write_text("old/train-00007.tokens", "x");
  options.data = folder.path("in/a.txt");
  tokenize_corpus(options);
  EXPECT_EQ(left(), (std::vector<std::string>{"dataset.json", "notes.txt", "tokenizer.json", "train-00000.tokens",
                                              "train-00001.tokens.mine", "train-x.tokens"}));
}

TEST(TokenSet, HoldsOutDocumentsOfTheirOwn) {
  const ScratchFolder folder;
  folder.write_text("train/a.jsonl", lines());
  folder.write_text("valid/b.txt", "a book of its own");
  folder.write_text("valid/c.txt", "");
  folder.write_text("valid/d.txt", "and another one");
  TokenizeOptions options;
  options.data = folder.path("train"), options.valid_data = folder.path("valid"), options.out = folder.path("out");
  options.tokenizer = "train:300";
  const TokenSetInfo info = tokenize_corpus(options);
  EXPECT_EQ(info.valid_source, folder.path("valid"));
  EXPECT_EQ(info.empty, (std::vector<std::string>{folder.path("valid/c.txt")}));
  EXPECT_EQ(info.bytes, 12 * 10 + 2 + 66 + 17 + 15);
  const TokenSet train = TokenSet::open(options.out), valid = TokenSet::open(options.out, true);
  EXPECT_EQ(train.info(), valid.info());
  EXPECT_EQ(train.info().valid_source, info.valid_source);
  EXPECT_EQ(train.documents(), 12);
  ASSERT_EQ(valid.documents(), 2);
  EXPECT_EQ(text_of(valid, 0), "<|endoftext|>a book of its own");
  EXPECT_EQ(text_of(valid, 1), "<|endoftext|>and another one");
  TokenizeOptions alone = options;  // the tokenizer learned nothing of what is held out
  alone.valid_data = "", alone.out = folder.path("alone");
  EXPECT_EQ(tokenize_corpus(alone).fingerprint, info.fingerprint);
  options.out = folder.path("other"), options.valid = 0.1;
  EXPECT_EQ(message_of([&] { tokenize_corpus(options); }),
            "tokenize: valid is 0.1 and valid_data is " + options.valid_data + ", expected one of them");
  options.valid = 0.0, options.valid_data = folder.path("nowhere");
  EXPECT_EQ(message_of([&] { tokenize_corpus(options); }),
            "tokenize: valid_data is " + options.valid_data + ", which is not there");
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

TEST(TokenSet, KnowsItsText) {
  const ScratchFolder folder;
  folder.write_text("in/a.txt", "one"), folder.write_text("in/b/c.txt", "two");
  TokenizeOptions options;
  options.data = folder.path("in"), options.out = folder.path("out"), options.valid = 0.5;
  tokenize_corpus(options);
  TokenSetInfo info = TokenSet::open(options.out).info();
  ASSERT_TRUE(info.text);
  EXPECT_EQ(info.text->files, 2);
  EXPECT_EQ(info.text->bytes, 6);
  EXPECT_EQ(info.valid_part, 0.5);
  const std::string none = "nothing was thrown";
  const auto said = [&](const std::string& data) {
    return message_of([&] { expect_tokens_of("eval", options.out, info, data); });
  };
  EXPECT_EQ(said(folder.path("in")), none);
  std::filesystem::copy(folder.path("in"), folder.path("copy"), std::filesystem::copy_options::recursive);
  folder.write_text("copy/not.bin", "no text");
  EXPECT_EQ(said(folder.path("copy")), none);
  EXPECT_EQ(said(folder.path("in/../in/")), none);
  folder.write_text("in/a.txt", "onet"), folder.write_text("in/b/c.txt", "wo");  // the same bytes in all
  EXPECT_TRUE(has(said(folder.path("in")),
                  str("eval: ", options.out, " has the tokens of ", options.data, " as it was (2 files of 6 bytes,")));
  EXPECT_TRUE(has(said(folder.path("in")), str("), expected those of ", options.data, " as it is now (2 files of 6")));
  EXPECT_TRUE(has(said(folder.path("in/a.txt")), str("expected those of ", folder.path("in/a.txt"), " (1 file of 4")));
  std::filesystem::remove_all(folder.path("in"));
  EXPECT_EQ(said(folder.path("in")), none);  // gone, the tokens are what is left of it
  EXPECT_TRUE(has(said(folder.path("other")), "expected those of " + folder.path("other")));
  info.text.reset();  // as in files that do not say it
  EXPECT_TRUE(has(said(folder.path("copy")), "expected those of " + folder.path("copy")));
}

TEST(TokenSet, KnowsItsTokenizer) {
  const ScratchFolder folder;
  folder.write_text("a.txt", "to be or not to be");
  TokenizeOptions options;
  options.data = folder.path("a.txt"), options.tokenizer = "train:300", options.out = folder.path("out");
  tokenize_corpus(options);
  TokenSetInfo info = TokenSet::open(options.out).info();
  EXPECT_LT(info.vocab_size, 300);  // so little text has no more
  EXPECT_TRUE(has_tokenizer(info, "train:300"));
  EXPECT_TRUE(has_tokenizer(info, folder.path("out/tokenizer.json")));
  EXPECT_FALSE(has_tokenizer(info, "train:301"));
  EXPECT_FALSE(has_tokenizer(info, "bytes"));
  info.trained_to = 0;  // as in files that do not say it
  EXPECT_FALSE(has_tokenizer(info, "train:300"));
  EXPECT_TRUE(has_tokenizer(info, str("train:", info.vocab_size)));
  EXPECT_TRUE(has(message_of([&] { (void)has_tokenizer(info, "train:x"); }), "tokenizer is 'train:x'"));
}

TEST(TokenSet, WhatATemplatePutsAroundADocument) {
  const ScratchFolder folder;
  BpeTable table = BpeTokenizer(dynamic_cast<const BpeTokenizer&>(*byte_tokenizer()).table()).table();
  for (const char* name : {"<s>", "</s>"}) {
    table.specials.push_back({static_cast<std::uint32_t>(table.tokens.size()), name});
    table.tokens.emplace_back(name);
  }
  table.opening = {257}, table.closing = {258};
  BpeTokenizer(table).save(folder.path("t.json"));
  folder.write_text("a.txt", "ab");
  TokenizeOptions options;
  options.data = folder.path("a.txt");
  options.out = folder.path("out");
  options.tokenizer = folder.path("t.json");
  EXPECT_EQ(tokenize_corpus(options).document_token, 257);
  EXPECT_EQ(text_of(TokenSet::open(options.out), 0), "<s>ab</s>");
}

TEST(TokenSet, DatasetJsonIsStrict) {
  TokenSetInfo info;
  info.source = "here", info.tokenizer_kind = "bpe", info.fingerprint = 0xabc, info.vocab_size = 300;
  info.document_token = 256, info.bytes = 7;
  info.train = {2, 9, {"train-00000.tokens"}};
  const std::string good = write_token_index(info);
  EXPECT_EQ(parse_token_index(good, "d"), info);
  TokenSetInfo two = info;
  two.valid_source = "there", two.valid_tail = true, two.valid_part = 0.25, two.text = CorpusPrint{3, 70, 0xab};
  two.trained_to = 512;
  EXPECT_EQ(parse_token_index(write_token_index(two), "d"), two);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return message_of([&] { parse_token_index(text.replace(text.find(from), from.size(), to), "d"); });
  };
  EXPECT_EQ(refused("mhla tokens", "mhla"), "d: is no list of token shards of version 1");
  EXPECT_EQ(refused("\"version\": 1", "\"version\": 2"), "d: is no list of token shards of version 1");
  EXPECT_EQ(refused("0000000000000abc", "abc"), "d: fingerprint is 'abc', expected 16 digits");
  EXPECT_EQ(refused("\"version\": 1", R"("version": 1, "text": {"files": 1, "bytes": 2, "crc32c": "abc"})"),
            "d: crc32c is 'abc', expected 8 digits");
  EXPECT_EQ(refused("300", "0"), "d: vocab_size is 0, expected 1 to 16777216");
  EXPECT_EQ(refused("256", "300"), "d: document_token is 300, expected 0 to 299");
  EXPECT_EQ(refused("\"version\": 1", "\"version\": 1, \"trained_to\": 0"), "d: trained_to is 0, expected 1 or more");
  EXPECT_EQ(refused("\"tokens\": 9", "\"tokens\": -9"), "d: 2 documents of -9 tokens, expected 0 or more");
  for (const char* name : {"../x.tokens", "/etc/passwd", "..", "."})
    EXPECT_TRUE(has(refused("train-00000.tokens", name), "expected a name in the folder")) << name;
}

TEST(TokenSet, MistakesAreNamed) {
  const ScratchFolder folder;
  folder.write_text("a.jsonl", lines());
  TokenizeOptions options;
  options.data = folder.path("a.jsonl");
  options.out = folder.path("out");
  EXPECT_EQ(message_of([&] { TokenSet::open(options.out); }),
            "data: " + options.out + " has no dataset.json: make it with mhla data tokenize");
  options.tokenizer = "train:x";
  EXPECT_EQ(message_of([&] { tokenize_corpus(options); }),
            "tokenizer is 'train:x', expected bytes, a tokenizer.json, a .model, or train:SIZE of at most 16777216 "
            "tokens");
  options.tokenizer = "bytes";
  tokenize_corpus(options);
  EXPECT_EQ(message_of([&] { tokenize_corpus(options); }),
            "tokenize: " + options.out + " has a dataset.json already; give another folder");
  EXPECT_EQ(message_of([&] { TokenSet::open(options.out, true); }),
            "data: " + options.out + " has no held-out documents");
  byte_tokenizer()->save(folder.path("bytes.json"));
  options.tokenizer = "train:270";
  options.out = folder.path("other");
  tokenize_corpus(options);
  std::filesystem::copy(folder.path("bytes.json"), folder.path("other/tokenizer.json"),
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(has(message_of([&] { (void)TokenSet::open(folder.path("other")).tokenizer(); }), "is another tokenizer"));
  std::filesystem::copy(folder.path("out/train-00000.tokens"), folder.path("other/train-00000.tokens"),
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(has(message_of([&] { TokenSet::open(folder.path("other")); }), "is of another tokenizer"));
  folder.write_text("b.txt", "some other text, some other text, some other text");  // as many tokens, but others
  options.data = folder.path("b.txt");
  options.out = folder.path("third");
  EXPECT_EQ(tokenize_corpus(options).vocab_size, 270);
  std::filesystem::copy(folder.path("third/train-00000.tokens"), folder.path("other/train-00000.tokens"),
                        std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(has(message_of([&] { TokenSet::open(folder.path("other")); }), "is of another tokenizer"));
}

}  // namespace
}  // namespace mhla
