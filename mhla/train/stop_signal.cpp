#include "mhla/train/stop_signal.h"

namespace mhla::train {
namespace {

volatile std::sig_atomic_t received = 0;

extern "C" void remember(int signal) {
  received = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
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
