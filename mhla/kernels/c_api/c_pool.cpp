// Threads of mhla/c.h: a pool of our own, or the caller's threads behind a callback.
#include <atomic>
#include <exception>
#include <mutex>

#include "mhla/kernels/c_api/c_api.h"

namespace mhla::c_api {
namespace {

// An exception may not travel through the frames of a C caller: the first one waits here until his run() is back.
class CallbackExecutor final : public Executor {
 public:
  CallbackExecutor(mhla_run_fn callback, void* context, int concurrency)
      : callback_(callback), context_(context), concurrency_(concurrency) {}

  [[nodiscard]] int concurrency() const override { return concurrency_; }

  void run(std::int64_t count, TaskRef task) override {
    Batch batch{task, count, concurrency_};
    callback_(context_, count, &CallbackExecutor::call, &batch);
    if (batch.first_error) std::rethrow_exception(batch.first_error);
    if (batch.done.load() != count) {
      fail("mhla_pool_from_callback: run came back after ", batch.done.load(), " of ", count, " tasks");
    }
  }

 private:
  struct Batch {
    TaskRef task;
    std::int64_t count;
    int concurrency;
    std::atomic<std::int64_t> done{0};
    std::mutex mutex{};
    std::exception_ptr first_error{};
  };

  static void call(void* task_data, std::int64_t index, std::int32_t worker) {
    Batch& batch = *static_cast<Batch*>(task_data);
    try {
      if (index < 0 || index >= batch.count || worker < 0 || worker >= batch.concurrency) {
        fail("mhla_pool_from_callback: task called with index ", index, " and worker ", worker, ", expected below ",
             batch.count, " and ", batch.concurrency);
      }
      batch.task(index, worker);
    } catch (...) {
      const std::lock_guard lock(batch.mutex);
      if (!batch.first_error) batch.first_error = std::current_exception();
    }
    batch.done.fetch_add(1);
  }

  mhla_run_fn callback_;
  void* context_;
  int concurrency_;
};

void check_threads(std::int32_t threads, const char* entry, const char* argument) {
  if (threads < 1) fail(entry, ": ", argument, " is ", threads, ", expected at least 1");
}

}  // namespace
}  // namespace mhla::c_api

using namespace mhla::c_api;

mhla_status mhla_pool_create(int32_t threads, mhla_pool** pool) {
  return guarded([&] {
    mhla_pool*& result = required(pool, "mhla_pool_create", "pool");
    check_threads(threads, "mhla_pool_create", "threads");
    result = new mhla_pool{std::make_unique<mhla::ThreadPool>(threads)};
  });
}

mhla_status mhla_pool_from_callback(mhla_run_fn run, void* context, int32_t concurrency, mhla_pool** pool) {
  return guarded([&] {
    mhla_pool*& result = required(pool, "mhla_pool_from_callback", "pool");
    if (run == nullptr) mhla::fail("mhla_pool_from_callback: run is null");
    check_threads(concurrency, "mhla_pool_from_callback", "concurrency");
    result = new mhla_pool{std::make_unique<CallbackExecutor>(run, context, concurrency)};
  });
}

void mhla_pool_destroy(mhla_pool* pool) { delete pool; }

mhla_status mhla_set_threads(int32_t threads) {
  return guarded([&] {
    check_threads(threads, "mhla_set_threads", "threads");
    mhla::set_default_threads(threads);
  });
}

int32_t mhla_threads(void) { return mhla::default_threads(); }
