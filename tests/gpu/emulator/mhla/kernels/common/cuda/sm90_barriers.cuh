// Stands in for the real file when kernels run in the emulator.
#pragma once

#include "tests/gpu/emulator/copies.h"
#include "tests/gpu/emulator/mbarriers.h"

namespace mhla::sm90 {

inline void barrier_init(std::uint32_t barrier, int count) { emulator::mbarrier_init(barrier, count); }
template <int kCount>
inline void barrier_init(std::uint32_t barrier) {
  barrier_init(barrier, kCount);
}
inline void barriers_ready() {}
inline void barrier_arrive(std::uint32_t barrier) { emulator::mbarrier_arrive(barrier); }
inline void barrier_arrive(std::uint32_t barrier, int count) {
  for (int i = 0; i < count; ++i) emulator::mbarrier_arrive(barrier);
}
inline constexpr int kWarpArrivals = 1;
inline void barrier_arrive_copied(std::uint32_t barrier) { emulator::copy_arrive(barrier); }
inline void barrier_wait(std::uint32_t barrier, int parity) { emulator::mbarrier_wait(barrier, parity); }
inline void barrier_expect(std::uint32_t barrier, int bytes) { emulator::mbarrier_arrive(barrier, bytes); }

template <int kCount>
inline void keep_registers() {}
template <int kCount>
inline void take_registers() {}

}  // namespace mhla::sm90
