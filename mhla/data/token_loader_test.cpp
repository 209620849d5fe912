#include "mhla/data/token_loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "mhla/data/data_fixture.h"
#include "mhla/data/philox.h"
#include "mhla/io/text/bpe.h"

namespace mhla {
namespace {

// Forty documents; document i is 3 i + 1 times one letter, so a sequence shows where it comes from.
TokenSet letters(const ScratchFolder& folder) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += str("{\"text\": \"", std::string(static_cast<std::size_t>(3 * i + 1), static_cast<char>('0' + i)), "\"}\n");
  folder.write_text("a.jsonl", text);
  TokenizeOptions options;
  options.data = folder.path("a.jsonl");
  options.out = folder.path("out");
  options.shard_tokens = 500;
  tokenize_corpus(options);
  return TokenSet::open(options.out);
}

TEST(TokenLoader, PackedWithoutLeakage) {
  const ScratchFolder folder;
  TokenLoaderOptions options;
  options.batch_size = 3, options.length = 32, options.seed = 5;
  TokenLoader loader(letters(folder), options);
  std::map<std::int64_t, int> seen;
  TokenBatch batch;
  for (std::int64_t k = 0; k < loader.batches_per_epoch(); ++k) {
    loader.next(batch);
    ASSERT_EQ(batch.epoch, 0);
    ASSERT_EQ(batch.cu_seqlens.front(), 0);
    ASSERT_EQ(batch.cu_seqlens.back(), 96);
    for (std::size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
      std::int64_t letter = 0;
      ASSERT_LE(batch.cu_seqlens[s + 1] - batch.cu_seqlens[s], 32);
      for (auto i = static_cast<std::size_t>(batch.cu_seqlens[s]);
           i < static_cast<std::size_t>(batch.cu_seqlens[s + 1]); ++i) {
        ++seen[batch.tokens[i]];
        for (const std::int64_t token : {batch.tokens[i], batch.targets[i]}) {
          if (token == 256) continue;  // opens a document, or stands behind one
          if (letter == 0) letter = token;
          ASSERT_EQ(token, letter);
        }
      }
    }
  }
  EXPECT_GT(seen.size(), 30u);
  seen.erase(256);
  for (const auto& [letter, count] : seen) EXPECT_LE(count, 3 * (letter - '0') + 1) << letter;  // nothing twice
}

// Thirty documents of random letters: what a batch holds is found in one place alone.
TokenSet prose(const ScratchFolder& folder, const std::string& tokenizer = "bytes") {
  std::string text;
  Philox random(1, Philox::kItem, 0, 0);
  for (int i = 0; i < 30; ++i) {
    std::string line;
    for (int j = 0; j < 4 * i + 3; ++j) line += static_cast<char>('a' + random.below(26));
    text += str("{\"text\": \"", line, "\"}\n");
  }
  folder.write_text("p.jsonl", text);
  TokenizeOptions options;
  options.data = folder.path("p.jsonl");
  options.out = folder.path("prose");
  options.tokenizer = tokenizer;
  tokenize_corpus(options);
  return TokenSet::open(options.out);
}

TEST(TokenLoader, EverySequenceIsAPieceOfItsDocumentAndEachTokenComesOnce) {
  const ScratchFolder folder;
  const TokenSet set = prose(folder);
  std::vector<std::int64_t> all(static_cast<std::size_t>(set.tokens()));
  set.copy(0, set.tokens(), all.data());
  TokenLoaderOptions options;
  options.batch_size = 3, options.length = 20, options.seed = 2;
  TokenLoader loader(set, options);
  std::vector<int> used(all.size());
  TokenBatch batch;
  for (std::int64_t k = 0; k < loader.batches_per_epoch(); ++k) {
    loader.next(batch);
    for (std::size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
      const auto begin = batch.tokens.begin() + batch.cu_seqlens[s],
                 end = batch.tokens.begin() + batch.cu_seqlens[s + 1];
      if (end - begin < 5) continue;  // too short to be in one place alone
      const auto found = std::search(all.begin(), all.end(), begin, end);
      ASSERT_NE(found, all.end());
      ASSERT_EQ(std::count(begin + 1, end, 256), 0);  // within one document
      const auto target = batch.targets.begin() + batch.cu_seqlens[s];
      for (std::ptrdiff_t i = 0; i < end - begin; ++i) {
        ++used[static_cast<std::size_t>(found - all.begin() + i)];
        const bool last = found + i + 1 == all.end();
        ASSERT_EQ(target[i], last ? 256 : found[i + 1]);
      }
    }
  }
  EXPECT_LE(*std::max_element(used.begin(), used.end()), 1);
  EXPECT_GT(std::count(used.begin(), used.end(), 1), set.tokens() * 3 / 4);
}

TEST(TokenLoader, RanksShareABatchAndSeedsDiffer) {
  const ScratchFolder folder;
  const TokenSet set = prose(folder);
  for (const bool packed : {false, true}) {
    TokenLoaderOptions options;
    options.batch_size = 6, options.length = 16, options.packed = packed;
    TokenBatch whole, part;
    TokenLoader(set, options).next(whole);
    options.seed = 1;
    TokenLoader(set, options).next(part);
    EXPECT_NE(whole.tokens, part.tokens);
    options.seed = 0, options.batch_size = 2, options.ranks = 3;
    std::vector<std::int64_t> together;
    for (options.rank = 0; options.rank < 3; ++options.rank) {
      TokenLoader(set, options).next(part);
      together.insert(together.end(), part.tokens.begin(), part.tokens.end());
      EXPECT_EQ(part.next, whole.next);
    }
    EXPECT_EQ(together, whole.tokens);
    options.batch_size = 1, options.per_rank = 2;  // two in a row of each
    together.clear();
    for (options.rank = 0; options.rank < 3; ++options.rank) {
      TokenLoader loader(set, options);
      for (int turn = 0; turn < 2; ++turn) {
        loader.next(part);
        together.insert(together.end(), part.tokens.begin(), part.tokens.end());
      }
      EXPECT_EQ(part.next, whole.next);
    }
    EXPECT_EQ(together, whole.tokens);
  }
}

TEST(TokenLoader, NoTargetBehindADocumentThatNothingOpens) {
  const ScratchFolder folder;
  BpeTable table;
  for (int byte = 0; byte < 256; ++byte) table.tokens.emplace_back(1, static_cast<char>(byte));
  BpeTokenizer(table).save(folder.path("plain.json"));
  TokenLoaderOptions options;
  options.batch_size = 8, options.length = 64;
  TokenLoader loader(prose(folder, folder.path("plain.json")), options);
  TokenBatch batch;
  loader.next(batch);
  std::int64_t ends = std::count(batch.targets.begin(), batch.targets.end(), kNoTarget);
  EXPECT_GT(ends, 3);
  for (std::size_t i = 0; i < batch.targets.size(); ++i)
    if (batch.targets[i] == kNoTarget)
      ends -= std::count(batch.cu_seqlens.begin(), batch.cu_seqlens.end(), static_cast<std::int64_t>(i + 1));
  EXPECT_EQ(ends, 0);  // at the end of a sequence, every one
}

TEST(TokenLoader, ConcatenatedAsTheyLie) {
  const ScratchFolder folder;
  TokenLoaderOptions options;
  options.batch_size = 2, options.length = 50, options.packed = false, options.shuffle = false;
  const TokenSet set = letters(folder);
  std::vector<std::int64_t> all(static_cast<std::size_t>(set.tokens()));
  set.copy(0, set.tokens(), all.data());
  TokenLoader loader(set, options);
  TokenBatch batch;
  for (std::int64_t k = 0; k < loader.batches_per_epoch(); ++k) {
    loader.next(batch);
    EXPECT_EQ(batch.rows, 2);
    EXPECT_TRUE(batch.cu_seqlens.empty());
    EXPECT_TRUE(std::equal(batch.tokens.begin(), batch.tokens.end(), all.begin() + 100 * k));
    EXPECT_TRUE(std::equal(batch.targets.begin(), batch.targets.end(), all.begin() + 100 * k + 1));
  }
  loader.next(batch);
  EXPECT_EQ(batch.epoch, 1);
}

TEST(TokenLoader, GoesOnWhereItWas) {
  const ScratchFolder folder;
  const TokenSet set = letters(folder);
  for (const bool packed : {false, true}) {
    TokenLoaderOptions options;
    options.batch_size = 4, options.length = 40, options.packed = packed;
    TokenLoader whole(set, options);
    TokenBatch batch, again;
    std::vector<std::vector<std::int64_t>> epochs(3);
    for (int k = 0; k < 40 && batch.epoch < 3; ++k) {
      whole.next(batch);
      if (batch.epoch < 3)
        epochs[static_cast<std::size_t>(batch.epoch)].push_back(batch.tokens[0] + 1000 * batch.tokens[9]);
      options.start = batch.next;
      TokenLoader resumed(set, options);
      TokenLoader copy = whole;
      copy.next(batch);
      resumed.next(again);
      ASSERT_EQ(batch.tokens, again.tokens);
      ASSERT_EQ(batch.targets, again.targets);
      ASSERT_EQ(batch.cu_seqlens, again.cu_seqlens);
      ASSERT_EQ(batch.next, again.next);
    }
    EXPECT_NE(epochs[0], epochs[1]);  // another order each time
  }
  TokenLoaderOptions options;
  options.length = 1 << 20;
  EXPECT_TRUE(has(message_of([&] { TokenLoader refused(set, options); }), "fewer than a batch of 8388608"));
}

}  // namespace
}  // namespace mhla
