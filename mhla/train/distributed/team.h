// Processes that work on one job. A Team is this process's side of it: sums, copies and agreement with the others.
// Every rank makes the same calls in the same order. What waits for others has an end: a rank that dies, hangs or fails
// is named in the RankFailed that all others throw, at the latest after `timeout_s`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mhla/core/run_failed.h"
#include "mhla/train/distributed/collectives.h"

namespace mhla::distributed {

// Another rank is why this one cannot go on.
struct RankFailed : RunFailed {
  using RunFailed::RunFailed;
};

class Watch;
struct Failure;

inline constexpr double kMeet = 120;  // seconds from the first process to the last, which may read from a slow disk

class Team {
 public:
  // Meets the others, which may start up to `meet_s` later. Throws RankFailed naming those that do not come. From then
  // on SIGPIPE is ignored, unless the program has a handler of its own.
  Team(const World& world, double timeout_s, double meet_s = kMeet);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  [[nodiscard]] int rank() const { return world_.rank; }
  [[nodiscard]] int size() const { return world_.size; }
  [[nodiscard]] bool leads() const { return world_.leads(); }
  [[nodiscard]] const World& world() const { return world_; }

  // Tensors on `device`, a GPU, go by NCCL from now on, where this build has it and every rank has a card of its own.
  // All ranks call it. Returns why they go through host memory instead, or nothing.
  std::string use_device(const at::Device& device);

  // ---- Collectives that are started and waited for; tensors are contiguous, and untouched in between

  class Pending {
   public:
    Pending() = default;
    Pending(Team& team, WorkPtr work, const char* what) : team_(&team), work_(std::move(work)), what_(what) {}
    void wait();  // at most once

   private:
    Team* team_ = nullptr;
    WorkPtr work_;
    const char* what_ = "";
  };
  // `what` is a word for messages: "gradients".
  Pending start_sum(at::Tensor& tensor, const char* what);
  Pending start_all_gather(std::vector<at::Tensor>& all, at::Tensor& mine, const char* what);
  Pending start_all_to_all(at::Tensor& theirs, at::Tensor& mine, const char* what);

  // ---- Some of the ranks

  // Ranks [n * size, (n + 1) * size) for every n, with connections of their own: what they exchange is matched among
  // themselves. All ranks of the team call it, with one name.
  class Part {
   public:
    Part(Team& team, int size, const std::string& name);
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    [[nodiscard]] int rank() const { return team_.rank() % size_; }
    [[nodiscard]] int size() const { return size_; }
    Pending start_all_gather(std::vector<at::Tensor>& all, at::Tensor& mine, const char* what);
    // Parts of so many rows for every rank of it, and from every rank.
    Pending start_all_to_all(at::Tensor& theirs, at::Tensor& mine, const std::vector<std::int64_t>& receive,
                             const std::vector<std::int64_t>& send, const char* what);

   private:
    [[nodiscard]] Collectives& for_tensor(const at::Tensor& tensor) const;

    Team& team_;
    int size_;
    std::unique_ptr<Collectives> gloo_, nccl_;  // NCCL: where the team uses it
  };

  // ---- Small things, waited for

  void barrier();
  void max(at::Tensor& tensor, const char* what);
  // Overwrites the tensors of the other ranks with those of rank 0, byte by byte, wherever they are.
  void copy_from_first(const std::vector<at::Tensor>& tensors, const char* what);
  // The same for one tensor of any rank, which is in host memory.
  void copy_from(int rank, at::Tensor& tensor, const char* what);
  std::string text_from_first(const std::string& text, const char* what);
  std::vector<std::string> gather_text(const std::string& mine, const char* what);  // by rank, the same everywhere
  std::vector<std::vector<double>> gather(const std::vector<double>& mine, const char* what);
  std::vector<double> sum(const std::vector<double>& mine, const char* what);  // in the order of the ranks

  // ---- Rank 0 alone

  // Rank 0 does the work; the others wait as long as rank 0 lives, however long that takes. What it throws, all throw.
  void on_first(const std::function<void()>& work, const char* what);
  // Rank 0 does the work, then the others do the same and find it done: tokens, caches.
  void first_then_rest(const std::function<void()>& work, const char* what);

  // ---- Failure

  // This process ends with a failure: tells the others why. True: it is the one that should print it, the first.
  // `mistake`: of the caller, so all end with an Error.
  bool leave_with(const std::string& reason, bool my_own, bool mistake = false);

 private:
  friend class Pending;
  friend class Part;
  void meet(double meet_s);
  [[nodiscard]] Collectives& for_tensor(const at::Tensor& tensor) const;
  void wait(c10d::Work& work, const char* what);
  [[noreturn]] void fail_late(const char* what, double seconds);
  [[noreturn]] void fail_lost(const char* what, const std::string& reason);
  [[noreturn]] void fail_as(const Failure& failure);

  World world_;
  double timeout_s_;
  std::string prefix_;  // of the keys in the store
  StorePtr store_;      // the connection of the group; rank 0 may serve it
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Collectives> gloo_, nccl_;  // NCCL: where use_device() has opened it
  std::int64_t firsts_ = 0;                   // on_first() so far
  bool failed_ = false;
};

}  // namespace mhla::distributed
