#include "mhla/train/stop_signal.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace mhla::train {
namespace {

volatile std::sig_atomic_t received = 0;

extern "C" void remember(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

// oneDNN's generated code for products points the stack pointer into the heap, and the kernel writes the frame of a
// handler below it: over other data. So handlers get a stack of their own. It is a thread's; the kernel gives signals
// of the process to the main thread.
void take_signal_stack() {
  if (syscall(SYS_gettid) != getpid()) return;
  stack_t now{};
  if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;  // there is one
  static std::array<std::byte, std::size_t{1} << 16> memory;
  stack_t stack{};
  stack.ss_sp = memory.data(), stack.ss_size = memory.size();
  sigaltstack(&stack, nullptr);
}

}  // namespace

StopSignal::StopSignal() {
  received = 0;
  take_signal_stack();
  struct sigaction action {};
  action.sa_handler = remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  sigaction(SIGINT, &action, &kept_int_);
  sigaction(SIGTERM, &action, &kept_term_);
}

StopSignal::~StopSignal() {
  sigaction(SIGINT, &kept_int_, nullptr);
  sigaction(SIGTERM, &kept_term_, nullptr);
  received = 0;
}

int StopSignal::number() const { return received; }
const char* StopSignal::name() const { return signal_name(received); }

const char* signal_name(int number) { return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : nullptr; }

void leave_when_stopped() {
  if (received != 0) throw Stopped();
}

}  // namespace mhla::train
