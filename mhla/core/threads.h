// Threads are the caller's choice: a pool of a given size, or any Executor of his own (executor.h).
#pragma once

#include <cstdint>
#include <memory>

#include "mhla/core/executor.h"

namespace mhla {

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
