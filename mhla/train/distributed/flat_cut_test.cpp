// Rows of numbers that ranks keep together: every number has one owner, ranks have equal shares, and what they exchange
// or hand over is whole again.
#include "mhla/train/distributed/flat_cut.h"

#include <gtest/gtest.h>

#include <random>

#include "mhla/train/distributed/team_fixture.h"

namespace mhla::distributed {
namespace {

constexpr double kRowLimit = 120;

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t sum = 0;
  for (const std::int64_t size : sizes) sum += size;
  return sum;
}

TEST(FlatCut, EveryNumberHasOneOwnerAndSharesAreEqual) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> sizes;
    const int tensors = static_cast<int>(random() % 9);
    for (int i = 0; i < tensors; ++i) sizes.push_back(static_cast<std::int64_t>(random() % (i == 2 ? 3000 : 200)));
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::vector<std::vector<int>> owners;
    for (const std::int64_t size : sizes) owners.emplace_back(static_cast<std::size_t>(size), 0);
    std::int64_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const FlatCut cut(sizes, rank, ranks);
      EXPECT_LE(cut.length(rank), cut.longest());
      most = std::max(most, cut.length(rank));
      std::int64_t at = 0;
      for (const FlatCut::Part& part : cut.parts(rank)) {
        EXPECT_GE(part.at, at);  // one after another
        EXPECT_EQ(part.begin % kAlign, 0);
        EXPECT_LE(part.at + part.count, cut.length(rank));
        at = part.at + part.count;
        for (std::int64_t i = 0; i < part.count; ++i) ++owners[part.tensor][static_cast<std::size_t>(part.begin + i)];
      }
    }
    for (const auto& tensor : owners)
      for (const int count : tensor) ASSERT_EQ(count, 1);
    // An equal share, but for what is rounded up: of the tensors and of the range.
    EXPECT_LE(most, (sum_of(sizes) + kAlign * tensors) / ranks + kAlign + 1);
  }
  EXPECT_THROW(FlatCut({5}, 2, 2), Error);
}

TEST(FlatCut, APieceOfARangeHasItsParts) {
  const FlatCut cut({100, 10, 300}, 1, 2);  // begins at 0, 128 and 192; ranges of 256 and 236
  EXPECT_EQ(cut.longest(), 256);
  EXPECT_EQ(cut.length(1), 236);
  const std::vector<FlatCut::Part> parts = cut.parts(0, 64, 128);
  ASSERT_EQ(parts.size(), 2u);
  const auto expect_part = [](const FlatCut::Part& part, std::size_t tensor, std::int64_t begin, std::int64_t count,
                              std::int64_t at) {
    EXPECT_EQ(part.tensor, tensor);
    EXPECT_EQ(part.begin, begin);
    EXPECT_EQ(part.count, count);
    EXPECT_EQ(part.at, at);
  };
  expect_part(parts[0], 0, 64, 36, 0);
  expect_part(parts[1], 1, 0, 10, 64);
  EXPECT_EQ(cut.parts(1)[0].begin, 64);
}

// Three tensors whose numbers are 0, 1, 2, ...
std::vector<at::Tensor> counted() {
  return {at::arange(700, at::kFloat).view({7, 100}), at::arange(700, 705, at::kFloat),
          at::arange(705, 2000, at::kFloat).view({5, 259})};
}

std::vector<std::int64_t> counted_sizes() { return {700, 5, 1295}; }

TEST(FlatCut, RanksCompleteTheirTensors) {
  for (const std::int64_t piece : {std::int64_t{1}, std::int64_t{1000}, kRowPiece}) {
    TeamProcesses team(3, [&](const World& world) {
      Team all(world, 60);
      const FlatCut cut(counted_sizes(), world.rank, world.size);
      const std::vector<at::Tensor> whole = counted();
      std::vector<at::Tensor> mine;
      for (const at::Tensor& tensor : whole) mine.push_back(at::full_like(tensor, -1.0));
      for (const FlatCut::Part& part : cut.parts(world.rank))
        mine[part.tensor]
            .view({-1})
            .narrow(0, part.begin, part.count)
            .copy_(whole[part.tensor].view({-1}).narrow(0, part.begin, part.count));
      complete(all, cut, mine, "weights", piece);
      for (std::size_t i = 0; i < whole.size(); ++i)
        if (!mine[i].equal(whole[i])) return str("tensor ", i, " differs");
      return std::string("whole");
    });
    for (const RankEnd& end : team.wait(kRowLimit)) EXPECT_EQ(end.said, "whole") << piece;
  }
}

TEST(FlatCut, RowsAreReadInTheirOrder) {
  for (const std::int64_t piece : {std::int64_t{1}, std::int64_t{1000}, kRowPiece}) {
    TeamProcesses team(3, [&](const World& world) {
      Team all(world, 60);
      const FlatCut cut(counted_sizes(), world.rank, world.size);
      const at::Tensor mine = at::full({cut.length(world.rank)}, -1.0);
      for (const FlatCut::Part& part : cut.parts(world.rank))
        mine.narrow(0, part.at, part.count).copy_(counted()[part.tensor].view({-1}).narrow(0, part.begin, part.count));
      RowReader reader(all, cut, mine, "a row", piece);
      std::vector<at::Tensor> numbers;
      while (reader.next())
        for (const FlatCut::Part& part : reader.parts())
          numbers.push_back(reader.piece().narrow(0, part.at, part.count).clone());
      return std::string(at::cat(numbers).equal(at::arange(2000, at::kFloat)) ? "in order" : "mixed up");
    });
    for (const RankEnd& end : team.wait(kRowLimit)) EXPECT_EQ(end.said, "in order") << piece;
  }
}

}  // namespace
}  // namespace mhla::distributed
