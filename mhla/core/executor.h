// Who runs the tasks of a call: threads.h has a pool of threads, a caller may bring an Executor of his own.
// A kernel cuts its work into tasks by the shape of the problem alone, never by the number of
// workers, so results have the same bits for every executor. Every kernel includes this: <memory> would cost nvcc 0.3 s
// a file.
#pragma once

#include <cstdint>
#include <type_traits>

namespace mhla {

// A task: called once for every index in [0, count). `worker` is in [0, concurrency()) and no two
// tasks run at once with the same worker of one run(), so it may index per-thread scratch memory.
class TaskRef {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, TaskRef>)
      TaskRef(F&& f)  // NOLINT(google-explicit-constructor): a reference to a lambda, lives for one run()
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
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

}  // namespace mhla
