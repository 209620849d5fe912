// Stands in for the real file when kernels run in the emulator.
#pragma once

#include "mhla/kernels/common/cuda/clusters.cuh"
#include "tests/gpu/emulator/mbarriers.h"

namespace mhla::sm90 {

inline void cluster_arrive() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }
inline void arrive_in_block(std::uint32_t barrier) { emulator::mbarrier_arrive(barrier); }
inline void send_to_block(std::uint32_t there, float x, std::uint32_t barrier) {
  emulator::send(there, &x, sizeof(x), barrier);
}
inline void send_to_block(std::uint32_t there, float a, float b, float c, float d, std::uint32_t barrier) {
  const float x[] = {a, b, c, d};
  emulator::send(there, x, sizeof(x), barrier);
}

}  // namespace mhla::sm90
