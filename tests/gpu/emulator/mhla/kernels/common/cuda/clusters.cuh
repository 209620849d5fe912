// Stands in for the real file when kernels run in the emulator.
#pragma once

#include "mhla/kernels/common/cuda/tensor_core.cuh"
#include "tests/gpu/emulator/clusters.h"

namespace mhla::cuda {

inline int cluster_rank() { return emulator::cluster_rank(); }
inline void cluster_barrier() {
  __syncwarp();
  emulator::cluster_arrive();
  emulator::cluster_wait();
}
inline std::uint32_t address_in_block(std::uint32_t address, int rank) {
  return emulator::cluster_address(address, rank);
}
template <class T>
inline void load_of_block(T& x, std::uint32_t there) {
  x = shared_at<T>(there);
}

}  // namespace mhla::cuda
