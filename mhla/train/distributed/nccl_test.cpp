// Tensors of a GPU: by NCCL where every rank has a card of its own (here one rank and one card), through host memory
// where two ranks share one, with the same results. Children ask for the card: a parent that has cannot be forked.
#include <gtest/gtest.h>

#include "mhla/train/distributed/team_fixture.h"

namespace mhla::distributed {
namespace {

constexpr double kCardLimit = 180;
constexpr const char* kNoCard = "no card";

// What a rank computes with the others on cuda:0, and how its tensors went.
std::string on_card(const World& world) {
#ifdef MHLA_TORCH_CUDA
  if (!at::hasCUDA() || at::getNumGPUs() == 0) return kNoCard;
#else
  return kNoCard;
#endif
  Team all(world, 60);
  const at::Device card(at::kCUDA, 0);
  const std::string through_host = all.use_device(card);
  const at::TensorOptions there = at::TensorOptions(at::kFloat).device(card);
  at::Tensor sum = at::full({5}, world.rank + 1.0, there);
  all.start_sum(sum, "a sum").wait();
  at::Tensor mine = at::arange(2 * world.size, there) + 10.0 * world.rank, theirs = at::empty_like(mine);
  all.start_all_to_all(theirs, mine, "parts").wait();
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < world.size; ++rank) parts.push_back(at::empty_like(mine));
  all.start_all_gather(parts, mine, "all").wait();
  at::Tensor most = at::full({2}, static_cast<double>(world.rank), there);
  all.max(most, "a maximum");
  const std::vector<double> numbers = all.sum({1.0}, "numbers");  // of the host, as ever
  return str(sum[4].item<double>(), " ", theirs[theirs.numel() - 1].item<double>(), " ", parts.back()[0].item<double>(),
             " ", most[1].item<double>(), " ", numbers[0], " | ", through_host);
}

std::vector<std::string> said_on_card(int ranks) {
  TeamProcesses team(ranks, on_card);
  std::vector<std::string> said;
  for (const RankEnd& end : team.wait(kCardLimit)) said.push_back(end.code == 0 ? end.said : "failed: " + end.said);
  return said;
}

TEST(Nccl, OneRankOnOneCard) {
  const std::string said = said_on_card(1)[0];
  if (said == kNoCard) GTEST_SKIP() << said;
  EXPECT_EQ(said, str("1 1 0 0 1 | ", nccl_missing()));
}

TEST(Nccl, TwoRanksOnOneCardGoThroughHostMemory) {
  const std::vector<std::string> said = said_on_card(2);
  if (said[0] == kNoCard) GTEST_SKIP() << said[0];
  const std::string why =
      nccl_missing().empty() ? "ranks 0 and 1 have one card, expected one for each" : nccl_missing();
  EXPECT_EQ(said[0], "3 11 10 1 2 | " + why);
  EXPECT_EQ(said[1], "3 13 10 1 2 | " + why);
}

TEST(Nccl, ATeamWithoutACardSaysWhy) {
  TeamProcesses team(2, [](const World& world) { return Team(world, 60).use_device(at::kCPU); });
  for (const RankEnd& end : team.wait(kCardLimit)) EXPECT_EQ(end.said, "the device is no GPU");
}

}  // namespace
}  // namespace mhla::distributed
