// The pool runs every task once, survives concurrent callers, and hands an exception to the caller.
#include "mhla/core/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/core/thread_count.h"

namespace mhla {
namespace {

TEST(Threads, EveryTaskRunsOnce) {
  for (const int threads : {1, 2, 7}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> hits(97);
      pool.run(97, [&](std::int64_t index, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++hits[static_cast<std::size_t>(index)];
      });
      for (const auto& hit : hits) ASSERT_EQ(hit, 1);
    }
  }
}

TEST(Threads, SeveralCallersAtOnce) {
  ThreadPool pool(3);
  std::atomic<int> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) pool.run(11, [&](std::int64_t, int) { ++total; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 300 * 11);
}

TEST(Threads, WorkersAreNotShared) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  pool.run(400, [&](std::int64_t, int worker) {
    EXPECT_EQ(inside[static_cast<std::size_t>(worker)]++, 0);
    --inside[static_cast<std::size_t>(worker)];
  });
}

TEST(Threads, TheFirstExceptionReachesTheCaller) {
  ThreadPool pool(2);
  EXPECT_THROW(pool.run(50,
                        [](std::int64_t index, int) {
                          if (index == 17) fail("task 17");
                        }),
               Error);
  int after = 0;
  pool.run(1, [&](std::int64_t, int) { ++after; });
  EXPECT_EQ(after, 1);
}

TEST(Threads, BadCounts) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(set_default_threads(0), Error);
}

TEST(Threads, NoMoreAreUsedThanThereAreCores) {
  const int cores = hardware_threads();
  EXPECT_GE(cores, 1);
  EXPECT_EQ(usable_threads(0).threads, cores);
  EXPECT_EQ(usable_threads(0).fewer, "");
  EXPECT_EQ(usable_threads(1).threads, 1);
  const ThreadCount many = usable_threads(1024);
  EXPECT_EQ(many.threads, std::min(cores, 1024));
  if (cores < 1024) {
    EXPECT_NE(many.fewer.find(str(" used, not 1024: this process may use ", cores, " core")), std::string::npos)
        << many.fewer;
  }
  EXPECT_THROW(usable_threads(1025), Error);
  EXPECT_THROW(usable_threads(-1), Error);
}

}  // namespace
}  // namespace mhla
