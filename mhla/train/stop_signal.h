// Ctrl-C and SIGTERM as a wish: while one of these lives, the first signal is remembered, so that a loop can save and
// leave; a second one ends the process at once. To be made on the main thread: there a signal cannot hurt products that
// are under way.
#pragma once

#include <csignal>

namespace mhla::train {

class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  [[nodiscard]] int number() const;        // SIGINT, SIGTERM, or 0
  [[nodiscard]] const char* name() const;  // "SIGINT", "SIGTERM", or null

 private:
  struct sigaction kept_int_ {
  }, kept_term_{};
};

const char* signal_name(int number);  // of these two; null for 0

// Thrown out of an evaluation that the signal cuts short.
struct Stopped {};

// Between two batches of an evaluation: throws Stopped when a StopSignal lives and has had its signal.
void leave_when_stopped();

}  // namespace mhla::train
