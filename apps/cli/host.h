// Facts about the machine a command runs on, read from the system without starting anything:
// processor, caches, memory, and the shared libraries that are opened only when a command needs them. Memory itself:
// core/memory.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/core/memory.h"

namespace mhla::apps {

struct CpuFacts {
  std::string model;                  // as the system names it, "unknown" when it does not
  std::vector<std::string> features;  // instruction sets that matter for the kernels, "avx2", "fma", ...
  int threads = 1;                    // logical processors this process may use
  std::int64_t l1d_bytes = 0;         // per core; 0 when the system does not tell
  std::int64_t l2_bytes = 0;          // per core
  std::int64_t l3_bytes = 0;          // shared
  std::int64_t memory_bytes = 0;      // physical memory
  std::int64_t available_bytes = 0;   // memory that can be used without swapping, now
};

CpuFacts read_cpu_facts();

// A last-level cache size that is never 0: what the system says, or 32 MiB.
std::int64_t last_level_cache(const CpuFacts& cpu);

std::string version_text(int cuda_version);  // "13.0" for 13000
std::string executable_directory();          // where the running program lies, without a trailing slash
// As many threads as usable_threads() gives for --threads, 0 for all; says so on stderr where they are fewer.
int threads_for(std::int64_t asked);
// OpenBLAS starts its threads when it is opened, and ends the process where it cannot: to be called before that. What
// the user has set stays.
void bound_library_threads();
std::string compiler_text();  // "g++ 12.2.0"

}  // namespace mhla::apps
