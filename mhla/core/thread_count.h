// How many threads a program should use.
#pragma once

#include <cstdint>
#include <string>

namespace mhla {

// What a user who asks for `asked` threads gets, 0 for all cores: no more than there are cores, since pools of several
// libraries would wait for each other, and no more than the system lets this process start (`ulimit -u`), which is
// tried. Throws where `asked` is beyond its limit (limits.h).
struct ThreadCount {
  int threads = 1;
  std::string fewer;  // why there are fewer than asked for, in a sentence; empty where there are not
};
ThreadCount usable_threads(std::int64_t asked);

}  // namespace mhla
