#include "mhla/core/thread_count.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "mhla/core/control_group.h"
#include "mhla/core/limits.h"
#include "mhla/core/threads.h"

namespace mhla {

int hardware_threads() {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));  // of the affinity
  const double quota = group_limits().processors.value_or(cores);
  return std::clamp(static_cast<int>(std::min(std::ceil(quota), 1e6)), 1, cores);
}

namespace {

// How many of `wanted` threads can run at once beside those that do.
int startable_threads(int wanted) {
  std::mutex mutex;
  std::condition_variable may_end;
  bool counted = false;
  std::vector<std::thread> started;
  started.reserve(static_cast<std::size_t>(wanted));
  try {
    for (int i = 0; i < wanted; ++i) {
      started.emplace_back([&] {
        std::unique_lock lock(mutex);
        may_end.wait(lock, [&] { return counted; });
      });
    }
  } catch (const std::system_error&) {
  }
  {
    const std::lock_guard lock(mutex);
    counted = true;
  }
  may_end.notify_all();
  for (std::thread& thread : started) thread.join();
  return static_cast<int>(started.size());
}

// Pools that may have their workers at once: the kernels', two of ATen, that of OpenBLAS, a loader's.
constexpr int kPools = 5;

}  // namespace

ThreadCount usable_threads(std::int64_t asked) {
  expect_within("usable_threads", "threads", asked, limits::kThreads);
  const int cores = hardware_threads(), wanted = asked == 0 ? cores : std::min(cores, static_cast<int>(asked));
  const int started = startable_threads(kPools * (wanted - 1));
  ThreadCount count{1 + started / kPools, {}};
  if (count.threads < wanted)
    count.fewer = str(count.threads, count.threads == 1 ? " thread is" : " threads are", " used, not ", wanted,
                      ": the system lets this process start ", started, " more (ulimit -u)");
  else if (asked > cores)
    count.fewer = str(cores, cores == 1 ? " thread is" : " threads are", " used, not ", asked,
                      ": this process may use ", cores, cores == 1 ? " core" : " cores");
  return count;
}

}  // namespace mhla
