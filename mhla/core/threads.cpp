// ThreadPool: one job at a time, tasks handed out by an atomic counter. A run() that finds the pool
// busy with another caller's job does its tasks on its own thread instead of waiting.
#include "mhla/core/threads.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "mhla/core/error.h"

namespace mhla {
namespace {

// About 20 us of pauses: longer than the gap between two phases of one operator, shorter than
// anything a person or another library would notice.
constexpr int kSpins = 2000;

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

struct ThreadPool::State {
  struct Job {
    TaskRef task;
    std::int64_t count;
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    std::mutex error_mutex;
  };

  std::mutex busy;                           // held by the caller whose job runs
  std::atomic<std::uint32_t> generation{0};  // bumped for every job, and to stop
  std::atomic<Job*> job{nullptr};
  std::atomic<int> entered{0};  // workers inside the current job
  std::atomic<bool> stopping{false};
  std::vector<std::thread> workers;

  static void work(Job& job, int worker) {
    for (;;) {
      const std::int64_t index = job.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= job.count || job.failed.load(std::memory_order_relaxed)) return;
      try {
        job.task(index, worker);
      } catch (...) {
        const std::lock_guard lock(job.error_mutex);
        if (!job.error) job.error = std::current_exception();
        job.failed = true;
      }
    }
  }

  void loop(int worker) {
    std::uint32_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && generation.load(std::memory_order_acquire) == seen; ++spin) pause_cpu();
      generation.wait(seen, std::memory_order_acquire);
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) return;
      // Enter first, then look: the caller clears `job` before it waits for `entered` to drop to zero.
      entered.fetch_add(1, std::memory_order_seq_cst);
      if (Job* current = job.load(std::memory_order_seq_cst)) work(*current, worker);
      if (entered.fetch_sub(1, std::memory_order_seq_cst) == 1) entered.notify_all();
    }
  }
};

void InlineExecutor::run(std::int64_t count, TaskRef task) {
  for (std::int64_t index = 0; index < count; ++index) task(index, 0);
}

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  if (threads < 1) fail("ThreadPool: threads is ", threads, ", expected at least 1");
  state_->workers.reserve(static_cast<std::size_t>(threads));
  try {
    for (int worker = 1; worker < threads; ++worker)
      state_->workers.emplace_back([this, worker] { state_->loop(worker); });
  } catch (const std::system_error&) {  // no more can be started: those that run do the work
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping = true;
  state_->generation.fetch_add(1);
  state_->generation.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::concurrency() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(std::int64_t count, TaskRef task) {
  if (count <= 0) return;
  State& s = *state_;
  std::unique_lock lock(s.busy, std::try_to_lock);
  if (count == 1 || s.workers.empty() || !lock.owns_lock()) {
    InlineExecutor().run(count, task);
    return;
  }
  State::Job job{.task = task, .count = count, .error = {}, .error_mutex = {}};
  s.job.store(&job, std::memory_order_seq_cst);
  s.generation.fetch_add(1, std::memory_order_release);
  s.generation.notify_all();
  State::work(job, 0);
  s.job.store(nullptr, std::memory_order_seq_cst);
  for (int spin = 0; spin < kSpins && s.entered.load(std::memory_order_seq_cst) != 0; ++spin) pause_cpu();
  for (int inside = s.entered.load(std::memory_order_seq_cst); inside != 0;
       inside = s.entered.load(std::memory_order_seq_cst)) {
    s.entered.wait(inside, std::memory_order_seq_cst);
  }
  if (job.error) std::rethrow_exception(job.error);
}

namespace {

struct Default {
  std::mutex mutex;
  int threads = hardware_threads();
  std::shared_ptr<Executor> executor;
};

Default& global() {
  static Default instance;
  return instance;
}

}  // namespace

int default_threads() {
  const std::lock_guard lock(global().mutex);
  return global().threads;
}

void set_default_threads(int threads) {
  if (threads < 1) fail("set_default_threads: threads is ", threads, ", expected at least 1");
  const std::lock_guard lock(global().mutex);
  if (threads == global().threads) return;
  global().threads = threads;
  global().executor.reset();
}

std::shared_ptr<Executor> default_executor() {
  const std::lock_guard lock(global().mutex);
  if (!global().executor) global().executor = std::make_shared<ThreadPool>(global().threads);
  return global().executor;
}

}  // namespace mhla
