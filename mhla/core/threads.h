// Threads are the caller's choice: a pool of a given size, or any Executor of his own.
// A kernel cuts its work into tasks by the shape of the problem alone, never by the number of
// workers, so results have the same bits for every executor.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace mhla {

// A task: called once for every index in [0, count). `worker` is in [0, concurrency()) and no two
// tasks run at once with the same worker of one run(), so it may index per-thread scratch memory.
class TaskRef {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>)
      TaskRef(F&& f)  // NOLINT(google-explicit-constructor): a reference to a lambda, lives for one run()
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, std::int64_t index, int worker) {
          (*static_cast<std::remove_reference_t<F>*>(object))(index, worker);
        }) {}
  void operator()(std::int64_t index, int worker) const { call_(object_, index, worker); }

 private:
  void* object_;
  void (*call_)(void*, std::int64_t, int);
};

class Executor {
 public:
  virtual ~Executor() = default;
  [[nodiscard]] virtual int concurrency() const = 0;       // workers that run() may use, at least 1
  virtual void run(std::int64_t count, TaskRef task) = 0;  // returns when all are done; rethrows the first exception
};

// Runs everything on the calling thread.
class InlineExecutor final : public Executor {
 public:
  [[nodiscard]] int concurrency() const override { return 1; }
  void run(std::int64_t count, TaskRef task) override;
};

// `threads` workers, the caller among them. Idle workers spin for a short while, then sleep.
// Several threads may call run() at once: each call is complete when it returns.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  [[nodiscard]] int concurrency() const override;
  void run(std::int64_t count, TaskRef task) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The executor used when a caller names none: a pool of default_threads() workers, made on first use.
// set_default_threads affects calls that start after it; it is the one place where a count is set.
int hardware_threads();
int default_threads();
void set_default_threads(int threads);
std::shared_ptr<Executor> default_executor();

}  // namespace mhla
