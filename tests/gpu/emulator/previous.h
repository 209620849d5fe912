// What the previous kernel has not finished with, for kernels that start before it has ended (programmatic launch): a
// test names the memory that it writes or reads. Before wait_for_previous() this memory is NaN, and must stay so: then
// it is what it was. The previous kernel ends when nobody can go on without it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace emulator {

class PreviousKernel {  // while it lives
 public:
  explicit PreviousKernel(std::vector<std::span<std::byte>> memory);
  ~PreviousKernel();
  PreviousKernel(const PreviousKernel&) = delete;
  PreviousKernel& operator=(const PreviousKernel&) = delete;
};

void wait_for_previous();

// For the scheduler: a block begins; nobody can go on (false: nobody waits for it); a block has ended.
void begin_previous();
bool end_previous();
void check_previous();

}  // namespace emulator
