// Blocks of a cluster and each other's shared memory, from compute capability 9.0 on. Before, a block is alone.
#pragma once

#include <cstdint>

namespace mhla::cuda {

// Where a block stands in its cluster.
__device__ inline int cluster_rank() {
  std::uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}
__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// The place of `address` in the shared memory of block `rank`.
__device__ inline std::uint32_t address_in_block(std::uint32_t address, int rank) {
#if __CUDA_ARCH__ >= 900
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
#else
  return address + static_cast<std::uint32_t>(rank);
#endif
}
__device__ inline void load_of_block(float& x, std::uint32_t there) {
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
#else
  x = static_cast<float>(there);
#endif
}
__device__ inline void load_of_block(float4& x, std::uint32_t there) {
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(there)
               : "memory");
#else
  x = {static_cast<float>(there), 0, 0, 0};
#endif
}

}  // namespace mhla::cuda
