// Barriers of a block, and what the lanes of a warp tell each other. Masks are full ones.
#pragma once

#include "tests/gpu/emulator/emulator.h"

inline void __syncthreads() { emulator::block_barrier(true); }
inline bool __syncthreads_and(bool value) { return emulator::block_barrier(value); }
inline bool __syncthreads_or(bool value) { return !emulator::block_barrier(!value); }
inline void __syncwarp(unsigned /*mask*/ = 0xffffffffu) {
  emulator::warp_meet("__syncwarp", nullptr, [](void* const(&)[32]) {});
}
[[noreturn]] inline void __trap() { emulator::wrong("__trap()"); }

namespace emulator {

inline int lane() { return static_cast<int>(threadIdx.x % 32); }

template <class T>
struct Shuffle {
  T value, got;
  int from;
};
template <class T>
T shuffle(const char* what, T value, int from) {
  Shuffle<T> mine{value, value, from};
  warp_meet(what, &mine, [](void* const(&lanes)[32]) {
    for (void* const lane : lanes) {
      auto& own = *static_cast<Shuffle<T>*>(lane);
      own.got = static_cast<const Shuffle<T>*>(lanes[own.from])->value;
    }
  });
  return mine.got;
}

inline std::uint32_t ballot(const char* what, bool value) {
  struct Vote {
    bool value;
    std::uint32_t all;
  };
  Vote mine{value, 0};
  warp_meet(what, &mine, [](void* const(&lanes)[32]) {
    std::uint32_t all = 0;
    for (int i = 0; i < 32; ++i) all |= std::uint32_t{static_cast<const Vote*>(lanes[i])->value} << i;
    for (void* const lane : lanes) static_cast<Vote*>(lane)->all = all;
  });
  return mine.all;
}

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned /*mask*/, T x, int from) {
  return emulator::shuffle("__shfl_sync", x, from & 31);
}
template <class T>
T __shfl_xor_sync(unsigned /*mask*/, T x, int away) {
  return emulator::shuffle("__shfl_xor_sync", x, (emulator::lane() ^ away) & 31);
}
template <class T>
T __shfl_down_sync(unsigned /*mask*/, T x, int away) {
  const int from = emulator::lane() + away;
  return emulator::shuffle("__shfl_down_sync", x, from < 32 ? from : emulator::lane());
}
template <class T>
T __shfl_up_sync(unsigned /*mask*/, T x, int away) {
  const int from = emulator::lane() - away;
  return emulator::shuffle("__shfl_up_sync", x, from >= 0 ? from : emulator::lane());
}
inline std::uint32_t __ballot_sync(unsigned /*mask*/, bool value) { return emulator::ballot("__ballot_sync", value); }
inline bool __any_sync(unsigned /*mask*/, bool value) { return emulator::ballot("__any_sync", value) != 0; }
inline bool __all_sync(unsigned /*mask*/, bool value) { return emulator::ballot("__all_sync", value) == 0xffffffffu; }
