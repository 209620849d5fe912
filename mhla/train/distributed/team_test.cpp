// Teams of real processes: what they compute together, and what they do when one of them dies, hangs or fails.
#include "mhla/train/distributed/team.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

#include "mhla/train/distributed/team_fixture.h"

namespace mhla::distributed {
namespace {

constexpr double kLimit = 120;  // of a test: this machine may be busy

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(World, ComesFromTheEnvironment) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                           "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"})
    ::unsetenv(name);
  EXPECT_TRUE(world_from_environment().alone());
  ::setenv("WORLD_SIZE", "4", 1);
  EXPECT_THROW(world_from_environment(), Error);  // no RANK
  ::setenv("RANK", "4", 1);
  try {
    world_from_environment();
    ADD_FAILURE() << "rank 4 of 4 was taken";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "RANK is '4', expected a whole number from 0 to 3");
  }
  ::setenv("RANK", "3", 1), ::setenv("LOCAL_RANK", "1", 1), ::setenv("LOCAL_WORLD_SIZE", "2", 1);
  ::setenv("MASTER_ADDR", "node0", 1), ::setenv("MASTER_PORT", "29501", 1);
  ::setenv("TORCHELASTIC_RESTART_COUNT", "2", 1), ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  const World world = world_from_environment();
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.address, "node0");
  EXPECT_EQ(world.port, 29501);
  EXPECT_EQ(world.restarts, 2);
  EXPECT_TRUE(world.store_is_served);
  ::unsetenv("WORLD_SIZE");
}

TEST(Team, WritingToARankThatIsGoneDoesNotEndTheOthers) {
  TeamProcesses team(2, [](const World& world) {
    std::signal(SIGPIPE, SIG_DFL);  // as programs have it
    const Team all(world, 60);
    std::raise(SIGPIPE);
    return std::string("here");
  });
  for (const RankEnd& end : team.wait(kLimit)) EXPECT_EQ(end.said, "here");
}

TEST(Team, SumsGathersAndCopies) {
  TeamProcesses team(3, [](const World& world) {
    Team all(world, 60);
    at::Tensor sum = at::full({5}, world.rank + 1.0);
    all.start_sum(sum, "a sum").wait();
    at::Tensor most = at::full({2}, static_cast<double>(world.rank));
    all.max(most, "a maximum");
    at::Tensor mine = at::arange(6, at::kFloat) + 10.0 * world.rank, theirs = at::empty_like(mine);
    all.start_all_to_all(theirs, mine, "parts").wait();
    at::Tensor copied = at::full({3}, world.rank, at::kLong), flags = at::full({2}, world.rank == 0, at::kBool);
    all.copy_from_first({copied, flags}, "a copy");
    const std::vector<std::string> texts =
        all.gather_text(std::string(static_cast<std::size_t>(world.rank), 'x'), "texts");
    const std::vector<double> total = all.sum({0.5, 1.0 * world.rank}, "numbers");
    all.barrier();
    return str(sum[4].item<double>(), " ", most[1].item<double>(), " ", theirs[3].item<double>(), " ",
               copied[2].item<std::int64_t>(), flags[1].item<bool>(), " ", texts[0], "|", texts[1], "|", texts[2], " ",
               total[0], " ", total[1], " ", all.text_from_first(world.rank == 0 ? "said" : "", "a text"));
  });
  const std::vector<RankEnd> ends = team.wait(kLimit);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].code, 0);
    // Of two values a rank, the second of rank 1's part for this one: 10 + 2 rank + 1.
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].said, str("6 2 ", 11 + 2 * rank, " 01 |x|xx 1.5 3 said"));
  }
}

TEST(Team, RankZeroWorksWhileTheOthersWait) {
  TeamProcesses team(2, [](const World& world) {
    Team all(world, 1.0);
    std::string did;
    // Longer than the timeout: rank 0 is alive and may take its time.
    all.on_first([&] { did = "worked", std::this_thread::sleep_for(std::chrono::milliseconds(2500)); }, "work");
    all.first_then_rest([&] { did += "+same"; }, "work");
    try {
      all.on_first([&] { fail("the folder is full"); }, "work");
    } catch (const Error& error) {
      did += str(" ", error.what(), all.leave_with(error.what(), true) ? " (told)" : " (quiet)");
    }
    return did;
  });
  std::vector<RankEnd> ends = team.wait(kLimit);
  EXPECT_TRUE(has(ends[0].said, "worked+same the folder is full")) << ends[0].said;
  EXPECT_TRUE(has(ends[1].said, "+same the folder is full")) << ends[1].said;
  EXPECT_NE(has(ends[0].said, "(told)"), has(ends[1].said, "(told)"));  // one of them
}

TEST(Team, AMistakeThatOneRankFindsIsAnErrorOfAll) {
  for (const bool mistake : {true, false}) {
    TeamProcesses team(3, [&](const World& world) -> std::string {
      Team all(world, 5.0);
      if (world.rank == 1) {
        all.leave_with("the batch does not fit", true, mistake);
        fail("the batch does not fit");
      }
      at::Tensor sum = at::ones({10});
      all.start_sum(sum, "gradients").wait();
      return "no failure";
    });
    for (const RankEnd& end : team.wait(kLimit)) {
      EXPECT_TRUE(has(end.said, "the batch does not fit")) << end.said;
      EXPECT_EQ(end.code, mistake || !has(end.said, "rank 1 failed: ") ? 2 : 1) << end.said;
    }
  }
}

// A body that sums for ever; what it throws says whether it should be printed.
std::string sum_for_ever(const World& world, double timeout_s, const std::function<void(int)>& at_round = {}) {
  Team all(world, timeout_s);
  try {
    for (int round = 0;; ++round) {
      if (at_round) at_round(round);
      at::Tensor sum = at::ones({1000});
      all.start_sum(sum, "gradients").wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  } catch (const RankFailed& error) {
    throw RunFailed(str(error.what(), all.leave_with(error.what(), false) ? " (told)" : ""));
  } catch (const RunFailed& error) {
    throw RunFailed(str(error.what(), all.leave_with(error.what(), true) ? " (told)" : ""));
  }
}

void expect_named(const std::vector<RankEnd>& ends, int lost, const std::string& part, double within_s) {
  int told = 0;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (static_cast<int>(rank) == lost) continue;
    EXPECT_EQ(ends[rank].code, 1) << "rank " << rank << ": " << ends[rank].said;
    EXPECT_TRUE(has(ends[rank].said, part)) << "rank " << rank << ": " << ends[rank].said;
    EXPECT_LT(ends[rank].seconds, within_s) << "rank " << rank;
    told += has(ends[rank].said, "(told)") ? 1 : 0;
  }
  // Without a store nobody knows who else has said it.
  EXPECT_LE(told, lost == 0 ? static_cast<int>(ends.size()) - 1 : 1);
}

void after(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(Team, AKilledRankIsNamed) {
  TeamProcesses team(3, [](const World& world) { return sum_for_ever(world, 60); });
  after(3);
  team.signal(1, SIGKILL);
  expect_named(team.wait(kLimit), 1, "rank 1 is gone", 40);
}

TEST(Team, TheRankThatServesTheStoreIsNamedToo) {
  TeamProcesses team(3, [](const World& world) { return sum_for_ever(world, 60); });
  after(3);
  team.signal(0, SIGKILL);
  expect_named(team.wait(kLimit), 0, "rank 0 is gone", 40);
}

TEST(Team, AStoppedRankIsNamedWithinTheTimeout) {
  for (const int lost : {0, 2}) {
    TeamProcesses team(3, [](const World& world) { return sum_for_ever(world, 4); });
    after(3);
    team.signal(lost, SIGSTOP);
    const auto stopped = std::chrono::steady_clock::now();
    const std::vector<RankEnd> ends = team.wait(kLimit, lost);
    EXPECT_LT(seconds_since(stopped), 4 + 1 + 2);  // 2: this machine may be busy
    expect_named(ends, lost, str("rank ", lost, " does not answer"), 30);
  }
}

TEST(Team, WhoNoticesLaterSaysTheSame) {
  TeamProcesses team(3, [](const World& world) -> std::string {
    if (world.rank != 1) return sum_for_ever(world, 20);
    Team all(world, 3);
    try {
      for (;;) {
        at::Tensor sum = at::ones({1000});
        all.start_sum(sum, "gradients").wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    } catch (const RankFailed&) {
      std::_Exit(1);  // its connections end before the others have read what it reported
    }
  });
  after(3);
  team.signal(2, SIGSTOP);
  const std::vector<RankEnd> ends = team.wait(kLimit, 2);
  EXPECT_TRUE(has(ends[0].said, "rank 2 does not answer")) << ends[0].said;
}

TEST(Team, AFailureIsKnownToAllAtOnce) {
  TeamProcesses team(3, [](const World& world) {
    return sum_for_ever(world, 60, [&](int round) {
      if (round == 20 && world.rank == 2) throw RunFailed("the disk is full");
    });
  });
  const std::vector<RankEnd> ends = team.wait(kLimit);
  expect_named(ends, 2, "rank 2 failed: the disk is full", 40);
  EXPECT_EQ(ends[2].code, 1);
  EXPECT_TRUE(has(ends[2].said, "the disk is full (told)")) << ends[2].said;
}

TEST(Team, ARankThatNeverComesIsNamed) {
  TeamProcesses team(3, [](const World& world) {
    if (world.rank == 1) return std::string("did not come");
    Team all(world, 60, 2);
    return std::string("met");
  });
  const std::vector<RankEnd> ends = team.wait(kLimit);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].code, 1);
    EXPECT_EQ(ends[static_cast<std::size_t>(rank)].said, "rank 1 did not come within 2 s, expected 3 ranks");
  }
}

TEST(Team, ALateRankThatLivesIsCalledLate) {
  TeamProcesses team(2, [](const World& world) {
    return sum_for_ever(world, 3, [&](int round) {
      if (round == 20 && world.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
    });
  });
  const std::vector<RankEnd> ends = team.wait(kLimit, 1);
  expect_named(ends, 1, "rank 1 is alive, but has not come (waited 3 s for gradients)", 30);
}

}  // namespace
}  // namespace mhla::distributed
