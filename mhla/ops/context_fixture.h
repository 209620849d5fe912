// Processes that share a sequence, as threads of this one, for tests.
#pragma once

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "mhla/core/error.h"
#include "mhla/ops/context_parallel.h"

namespace mhla::ops {

// What the threads exchange.
class ContextTable {
 public:
  explicit ContextTable(std::int64_t size) : rows_(static_cast<std::size_t>(size)) {}
  std::vector<at::Tensor> gather(std::int64_t rank, const at::Tensor& own) {
    std::unique_lock lock(mutex_);
    rows_[static_cast<std::size_t>(rank)] = own;
    meet(lock);
    std::vector<at::Tensor> all = rows_;
    meet(lock);  // before anybody brings the next
    return all;
  }

 private:
  void meet(std::unique_lock<std::mutex>& lock) {
    const std::int64_t turn = turn_;
    if (++here_ == static_cast<std::int64_t>(rows_.size())) {
      here_ = 0, ++turn_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return turn_ != turn; });
    }
  }
  std::vector<at::Tensor> rows_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::int64_t here_ = 0, turn_ = 0;
};

class ThreadContext : public ContextGroup {
 public:
  ThreadContext(ContextTable& table, std::int64_t rank, std::int64_t size) : table_(table), rank_(rank), size_(size) {}
  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  at::Tensor gather(const at::Tensor& own, const std::vector<std::int64_t>& counts) override {
    if (own.size(0) != counts[static_cast<std::size_t>(rank_)]) fail("gather: ", own.size(0), " rows");
    return at::cat(table_.gather(rank_, own), 0);
  }
  at::Tensor exchange(const at::Tensor& own, const std::vector<std::int64_t>& send,
                      const std::vector<std::int64_t>& receive) override {
    const auto me = static_cast<std::size_t>(rank_);
    std::vector<at::Tensor> mine;
    for (const at::Tensor& cut : table_.gather(rank_, at::tensor(send, at::kLong))) counts_.push_back(cut);
    const std::vector<at::Tensor> all = table_.gather(rank_, own);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto* cut = counts_[rank].data_ptr<std::int64_t>();
      mine.push_back(all[rank].narrow(0, std::accumulate(cut, cut + me, std::int64_t{0}), cut[me]));
      if (cut[me] != receive[rank]) fail("exchange: ", cut[me], " numbers of ", rank, ", expected ", receive[rank]);
    }
    counts_.clear();
    return at::cat(mine);
  }

 private:
  ContextTable& table_;
  std::int64_t rank_, size_;
  std::vector<at::Tensor> counts_;
};

template <class F>
void on_threads(std::int64_t size, const F& work) {
  ContextTable table(size);
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadContext group(table, rank, size);
      work(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mhla::ops
