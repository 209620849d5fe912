#include "tests/gpu/emulator/previous.h"

#include <algorithm>
#include <utility>

#include "tests/gpu/emulator/fibers.h"

namespace emulator {

namespace {

std::vector<std::span<std::byte>> previous;
std::vector<std::vector<std::byte>> saved;  // what it has, while it is NaN
int waiting = 0;

void restore() {
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const std::span<std::byte> memory = previous[i];
    const auto written = std::find_if(memory.begin(), memory.end(), [](std::byte x) { return x != std::byte{0xff}; });
    if (written != memory.end()) {
      wrong("written before wait_for_previous(): byte %zd of memory %zu of the previous kernel",
            written - memory.begin(), i);
    }
    std::copy(saved[i].begin(), saved[i].end(), memory.begin());
  }
  saved.clear();
}

}  // namespace

PreviousKernel::PreviousKernel(std::vector<std::span<std::byte>> memory) { previous = std::move(memory); }
PreviousKernel::~PreviousKernel() { previous.clear(); }

void wait_for_previous() {
  if (saved.empty()) return;
  ++waiting;
  wait_for(Wait::kPrevious, 0, 0);
}

void begin_previous() {
  saved.clear(), waiting = 0;
  for (const std::span<std::byte> memory : previous) {
    saved.emplace_back(memory.begin(), memory.end());
    std::fill(memory.begin(), memory.end(), std::byte{0xff});
  }
}

bool end_previous() {
  if (waiting == 0) return false;
  waiting = 0;
  restore();
  wake(Wait::kPrevious, 0);
  return true;
}

void check_previous() { restore(); }

}  // namespace emulator
