// Who of the others is still there. A thread writes into the store that this process lives and how many collectives it
// has begun, reads whether anybody has failed, and, when asked to look, how the others do. It has the store to itself:
// a store that does not answer (the process that serves it was stopped) keeps this thread waiting, never the caller.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mhla/train/distributed/collectives.h"

namespace mhla::distributed {

// Keys of the store: the first failure that was reported, and whether somebody has printed it.
inline constexpr const char *kFailed = "failed", *kTold = "told";

// The first failure that anybody reported.
struct Failure {
  int rank = 0;
  std::string reason;
  bool mistake = false;  // the caller's: all throw an Error, as the one that found it
};

class Watch {
 public:
  // `store` is a connection that nobody else uses.
  Watch(const World& world, StorePtr store);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin_collective();  // one more
  void look();              // at the others, from now on
  [[nodiscard]] std::optional<Failure> failure() const;
  std::optional<Failure> failure_now();  // after another look into the store
  // Ranks that were looked at and have not written for so long; all that did not write at all are among them.
  [[nodiscard]] std::vector<int> quiet_for(double seconds) const;
  // Ranks that write, but have begun fewer collectives than this one.
  [[nodiscard]] std::vector<int> behind() const;
  [[nodiscard]] double store_quiet_for() const;  // seconds since the store answered

  // Runs `question` in the thread; false when it got no answer in time.
  bool ask(const std::function<void(c10d::Store&)>& question, double timeout_s);
  // Tells everybody, unless somebody was first.
  void report(const Failure& failure);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this
};

}  // namespace mhla::distributed
