// For tests that turn what the emulator leaves open: restores all of it.
#pragma once

#include "tests/gpu/emulator/emulator.h"

namespace emulator {

struct Modes {
  Order order = emulator::order;
  bool copies = late_copies, sums = late_sums;
  int blocks = multiprocessors;
  ~Modes() { emulator::order = order, late_copies = copies, late_sums = sums, multiprocessors = blocks; }
};

}  // namespace emulator
