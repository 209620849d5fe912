// Encoding against its definition, and training against counting everything anew for every merge.
#include "mhla/io/text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "mhla/core/error.h"
#include "mhla/io/text/text_fixture.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

using Ids = std::vector<std::uint32_t>;

// The definition: join the strongest pair, leftmost first, look at everything again.
Ids encode_by_definition(const BpeTokenizer& tokenizer, std::string_view text) {
  const BpeTable& table = tokenizer.table();
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> ranks;
  for (std::size_t i = 0; i < table.merges.size(); ++i) ranks[table.merges[i]] = i;
  std::map<std::string, std::uint32_t> ids;
  for (std::uint32_t i = 0; i < table.tokens.size(); ++i) ids[table.tokens[i]] = i;
  Ids all;
  while (!text.empty()) {
    const std::size_t length = piece_length(table.rule, text);
    Ids piece;
    for (const char c : text.substr(0, length)) piece.push_back(ids.at(std::string(1, c)));
    for (;;) {
      std::size_t best = table.merges.size(), at = 0;
      for (std::size_t i = 0; i + 1 < piece.size(); ++i) {
        const auto rank = ranks.find({piece[i], piece[i + 1]});
        if (rank != ranks.end() && rank->second < best) best = rank->second, at = i;
      }
      if (best == table.merges.size()) break;
      piece[at] = ids.at(table.tokens[piece[at]] + table.tokens[piece[at + 1]]);
      piece.erase(piece.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    all.insert(all.end(), piece.begin(), piece.end());
    text.remove_prefix(length);
  }
  return all;
}

TEST(Bpe, EncodesAsDefined) {
  const auto tokenizer = trained(600);
  ASSERT_EQ(tokenizer->vocab_size(), 600);
  for (const std::string& text :
       {prose(400, 2), any_bytes(3000, 3), std::string(), std::string(" "), std::string(500, 'a'), prose(40, 1)})
    EXPECT_EQ(tokenizer->encode(text), encode_by_definition(*tokenizer, text));
}

TEST(Bpe, LongPiecesAsDefined) {  // a queue beyond 64 bytes
  BpeTable table = trained(600)->table();
  table.rule = PieceRule::kWhole;
  const BpeTokenizer tokenizer(table);
  for (const int words : {5, 8, 10, 11, 12, 15, 60, 300}) {
    const std::string text = prose(words, static_cast<std::uint64_t>(words));
    EXPECT_EQ(tokenizer.encode(text), encode_by_definition(tokenizer, text));
  }
  const std::string same(1 << 20, 'a');
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(same)), same);  // no quadratic work
}

TEST(Bpe, RememberedWordsChangeNothing) {
  const auto tokenizer = trained(400);
  const auto encoder = tokenizer->encoder();
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    Ids ids = {7};  // appends
    const std::string text = prose(200, seed % 7) + any_bytes(100, seed);
    encoder->encode(text, ids);
    ids.erase(ids.begin());
    EXPECT_EQ(ids, tokenizer->encode(text));
  }
}

RC_GTEST_PROP(Bpe, AnyBytesComeBack, (const std::string& text)) {
  static const TokenizerPtr tokenizers[] = {byte_tokenizer(), trained(500), trained(500, PieceRule::kLlama3)};
  for (const TokenizerPtr& tokenizer : tokenizers) {
    RC_ASSERT(tokenizer->decode(tokenizer->encode(text)) == text);
    RC_ASSERT(tokenizer->decode(tokenizer->encode(text, SpecialText::kParse)) == text);
  }
}

TEST(Bpe, BytesAreTheirOwnIds) {
  const TokenizerPtr tokenizer = byte_tokenizer();
  EXPECT_EQ(tokenizer->kind(), "bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->encode("a\xff\n"), (Ids{'a', 255, '\n'}));
  EXPECT_EQ(tokenizer->find_special(kEndOfText), 256u);
}

TEST(Bpe, SpecialTextOnlyWhenAskedFor) {
  const auto tokenizer = trained(400);
  const std::string text = "ab<|endoftext|>c<|endoftext|><|endoftext";
  const Ids plain = tokenizer->encode(text), parsed = tokenizer->encode(text, SpecialText::kParse);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 256u), 0);
  EXPECT_EQ(std::count(parsed.begin(), parsed.end(), 256u), 2);
  EXPECT_EQ(tokenizer->decode(parsed), text);

  BpeTable table = tokenizer->table();  // of two at one place the longer one; words that are no control tokens always
  for (const char* word : {"<a>", "<a><b>"}) {
    table.specials.push_back({static_cast<std::uint32_t>(table.tokens.size()), word, false});
    table.tokens.emplace_back(word);
  }
  EXPECT_EQ(BpeTokenizer(table).encode("<a><a><b>"), (Ids{400, 401}));
}

TEST(Bpe, PrefixSpaceAndIgnoredMerges) {
  BpeTable table = trained(300)->table();
  table.add_prefix_space = true;
  EXPECT_EQ(BpeTokenizer(table).decode(BpeTokenizer(table).encode("ab")), " ab");
  EXPECT_EQ(BpeTokenizer(table).decode(BpeTokenizer(table).encode(" ab")), " ab");
  table.add_prefix_space = false;
  table.tokens.emplace_back("qqq");  // no merge makes it
  EXPECT_EQ(BpeTokenizer(table).encode("qqq").size(), 3u);
  table.ignore_merges = true;
  EXPECT_EQ(BpeTokenizer(table).encode("qqq"), (Ids{300}));
}

TEST(Bpe, IdsWithoutTokenAreErrors) {
  const auto tokenizer = trained(300);
  EXPECT_EQ(message_of([&] { (void)tokenizer->token_text(300); }),
            "tokenizer: id 300 is out of range, expected 0 to 299");
  EXPECT_EQ(message_of([&] { (void)tokenizer->token_text(-1); }),
            "tokenizer: id -1 is out of range, expected 0 to 299");
  BpeTable table = tokenizer->table();
  table.tokens.resize(310);
  table.tokens.emplace_back("zzzz");
  EXPECT_EQ(message_of([&] {
              (void)BpeTokenizer(table).decode(Ids{65, 305});
            }),
            "tokenizer: id 305 has no token in this vocabulary of 311");
}

TEST(Bpe, TablesThatDoNotHoldTogether) {
  const BpeTable good = trained(300)->table();
  const auto refused = [&](auto change) {
    BpeTable table = good;
    change(table);
    return message_of([&] { BpeTokenizer tokenizer(table, "t"); });
  };
  EXPECT_EQ(refused([](BpeTable& t) { t.tokens[65] = "AB"; }),
            "t: no token for byte 65, expected one for each of 256 bytes");
  EXPECT_EQ(refused([](BpeTable& t) { t.tokens.emplace_back("A"); }), "t: tokens 65 and 300 are both \"A\"");
  EXPECT_EQ(refused([](BpeTable& t) { t.merges.emplace_back(1, 2); }),
            "t: merge 43 makes \"\\u0001\\u0002\", which is no token");
  EXPECT_EQ(refused([](BpeTable& t) { t.merges.emplace_back(1, 256); }),
            "t: merge 43 joins token 256, which is none of the vocabulary");
  EXPECT_NE(refused([](BpeTable& t) { t.merges.push_back(t.merges[0]); }).find("stands there twice"),
            std::string::npos);
  EXPECT_EQ(refused([](BpeTable& t) { t.specials[0].id = 65; }),
            "t: special token \"<|endoftext|>\" has id 65, which is another token's");
}

// Counts every pair of every piece for every merge.
std::vector<std::pair<std::string, std::string>> train_by_definition(std::string_view text, std::size_t merges) {
  std::vector<std::vector<std::uint32_t>> pieces;
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back(kEndOfText);
  while (!text.empty()) {
    const std::size_t length = piece_length(PieceRule::kGpt2, text);
    Ids& piece = pieces.emplace_back();
    for (const char c : text.substr(0, length)) piece.push_back(static_cast<unsigned char>(c));
    text.remove_prefix(length);
  }
  std::vector<std::pair<std::string, std::string>> made;
  while (made.size() < merges) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, int> counts;
    for (const Ids& piece : pieces)
      for (std::size_t i = 0; i + 1 < piece.size(); ++i) ++counts[{piece[i], piece[i + 1]}];
    std::pair<std::uint32_t, std::uint32_t> best;
    int most = 1;
    for (const auto& [pair, count] : counts) {
      const std::string joined = tokens[pair.first] + tokens[pair.second];
      if (count > most && std::find(tokens.begin(), tokens.end(), joined) == tokens.end()) best = pair, most = count;
    }
    if (most < 2) break;
    made.emplace_back(tokens[best.first], tokens[best.second]);
    for (Ids& piece : pieces)
      for (std::size_t i = 0; i + 1 < piece.size(); ++i)
        if (piece[i] == best.first && piece[i + 1] == best.second) {
          piece[i] = static_cast<std::uint32_t>(tokens.size());
          piece.erase(piece.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
    tokens.push_back(made.back().first + made.back().second);
  }
  return made;
}

TEST(BpeTraining, MergesAsDefined) {
  const std::string text = prose(700, 5) + " aaaa aaaaaaa aaa aaaaa abababab bababa ababab " + any_bytes(200, 6);
  BpeTrainOptions options;
  options.vocab_size = 257 + 150;
  BpeTrainer trainer(options);
  trainer.add(text);
  const auto tokenizer = trainer.train();
  const auto want = train_by_definition(text, 150);
  ASSERT_EQ(tokenizer->table().merges.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    const auto [left, right] = tokenizer->table().merges[i];
    ASSERT_EQ(tokenizer->token_text(left), want[i].first) << "merge " << i;
    ASSERT_EQ(tokenizer->token_text(right), want[i].second) << "merge " << i;
  }
}

TEST(BpeTraining, OrderOfDocumentsDoesNotMatter) {
  BpeTrainOptions options;
  options.vocab_size = 700;
  BpeTrainer forth(options), back(options);
  for (std::uint64_t i = 0; i < 20; ++i) forth.add(prose(100, i)), back.add(prose(100, 19 - i));
  EXPECT_EQ(forth.train()->fingerprint(), back.train()->fingerprint());
}

TEST(BpeTraining, EndsWhenNothingIsFrequent) {
  BpeTrainOptions options;
  options.vocab_size = 1000;
  BpeTrainer trainer(options);
  EXPECT_EQ(trainer.train()->vocab_size(), 257);
  trainer.add("ab ab xy");
  EXPECT_EQ(trainer.train()->vocab_size(), 258);
  options.vocab_size = 256;
  EXPECT_EQ(message_of([&] { BpeTrainer refused(options); }),
            "bpe training: vocab_size is 256, expected 257 (bytes and special tokens) to 16777216");
}

}  // namespace
}  // namespace mhla
