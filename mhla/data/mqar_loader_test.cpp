#include "mhla/data/mqar_loader.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "mhla/core/error.h"
#include "mhla/testing/messages.h"

namespace mhla {
namespace {

MqarLoaderOptions small() {
  MqarLoaderOptions o;
  o.mqar.length = 40, o.mqar.pairs = 6, o.mqar.vocab_size = 64, o.mqar.seed = 9;
  o.batch_size = 5, o.items = 23;  // three are left out
  return o;
}

TEST(MqarLoader, TargetsAreTheValuesOfKeysThatComeBackAndNothingElse) {
  for (const bool held_out : {false, true}) {
    MqarLoaderOptions options = small();
    options.held_out = held_out;
    MqarLoader loader(options);
    TokenBatch batch;
    loader.next(batch);
    ASSERT_EQ(batch.rows, 5);
    ASSERT_EQ(batch.length, 40);
    EXPECT_TRUE(batch.cu_seqlens.empty());
    for (std::size_t row = 0; row < 5; ++row) {
      std::map<std::int64_t, std::int64_t> value;
      int found = 0;
      for (std::size_t i = 40 * row; i < 40 * row + 40; ++i) {
        const std::int64_t token = batch.tokens[i];
        const bool pairs = i < 40 * row + 12;
        if (pairs && token < 32) value[token] = batch.tokens[i + 1];
        const bool asked = !pairs && value.count(token) != 0;
        ASSERT_EQ(batch.targets[i], asked ? value[token] : kNoTarget) << "row " << row << ", token " << i;
        found += asked ? 1 : 0;
      }
      EXPECT_EQ(found, 6);
    }
  }
}

TEST(MqarLoader, RanksShareABatch) {
  MqarLoaderOptions options = small();
  options.batch_size = 12;
  TokenBatch whole, part;
  MqarLoader(options).next(whole);
  options.batch_size = 2, options.ranks = 3, options.per_rank = 2;
  std::vector<std::int64_t> together;
  for (options.rank = 0; options.rank < 3; ++options.rank) {
    MqarLoader loader(options);
    EXPECT_EQ(loader.batches_per_epoch(), 1);
    for (int turn = 0; turn < 2; ++turn) {
      loader.next(part);
      together.insert(together.end(), part.tokens.begin(), part.tokens.end());
    }
    EXPECT_EQ(part.next, whole.next);
  }
  EXPECT_EQ(together, whole.tokens);
}

TEST(MqarLoader, GoesOnWhereItWasAndMakesNewSequencesEveryEpoch) {
  MqarLoaderOptions options = small();
  MqarLoader whole(options);
  EXPECT_EQ(whole.batches_per_epoch(), 4);
  TokenBatch batch, again;
  std::set<std::vector<std::int64_t>> rows;
  for (int k = 0; k < 12; ++k) {
    whole.next(batch);
    EXPECT_EQ(batch.epoch, k / 4);
    for (auto row = batch.tokens.begin(); row != batch.tokens.end(); row += 40) rows.insert({row, row + 40});
    options.start = batch.next;
    MqarLoader resumed(options);
    MqarLoader copy = whole;
    copy.next(batch);
    resumed.next(again);
    ASSERT_EQ(batch.tokens, again.tokens);
    ASSERT_EQ(batch.targets, again.targets);
    ASSERT_EQ(batch.next, again.next);
  }
  EXPECT_EQ(rows.size(), 60u);
  EXPECT_EQ(batch.next, (Cursor{3, 5}));
}

TEST(MqarLoader, HeldOutIsWhatTheTaskAsks) {
  MqarLoaderOptions options = small();
  options.held_out = true;
  MqarLoader loader(options);
  TokenBatch batch, later;
  loader.next(batch);
  for (std::int64_t item = 0; item < 5; ++item) {
    const MqarSequence asked = mqar_sequence(options.mqar, item);
    EXPECT_TRUE(std::equal(asked.tokens.begin(), asked.tokens.end(), batch.tokens.begin() + 40 * item));
  }
  for (int k = 0; k < 4; ++k) loader.next(later);
  EXPECT_EQ(later.tokens, batch.tokens);  // the same in every epoch
  options.held_out = false;
  MqarLoader(options).next(later);
  EXPECT_NE(later.tokens, batch.tokens);
}

TEST(MqarLoader, MistakesAreNamed) {
  const auto said = [](const auto& change) {
    MqarLoaderOptions options = small();
    change(options);
    return message_of([&] { MqarLoader refused(options); });
  };
  EXPECT_EQ(said([](auto& o) { o.items = 4; }), "mqar: items is 4, expected at least the 5 sequences of a batch");
  EXPECT_EQ(said([](auto& o) { o.batch_size = 0; }), "mqar: batch_size is 0, expected at least 1");
  EXPECT_EQ(said([](auto& o) { o.mqar.pairs = 11; }), "mqar: length is 40, expected at least 44 for 11 pairs");
  EXPECT_EQ(said([](auto& o) { o.start.position = 3; }),
            "mqar: start is epoch 0, position 3, expected a multiple of 5");
}

}  // namespace
}  // namespace mhla
