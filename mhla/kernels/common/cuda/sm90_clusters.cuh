// Hopper: what the blocks of a cluster write to each other and tell each other's barriers (clusters.cuh).
#pragma once

#include <cstdint>

#include "mhla/kernels/common/cuda/clusters.cuh"

namespace mhla::sm90 {

// A barrier of the cluster in two halves, all threads of a warp together. It does not order what they wrote.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Arrives at a barrier of another block.
__device__ inline void arrive_in_block(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Numbers on their way to the memory of another block, counted by a barrier there.
__device__ inline void send_to_block(std::uint32_t there, float x, std::uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(there), "f"(x),
               "r"(barrier)
               : "memory");
}
__device__ inline void send_to_block(std::uint32_t there, float a, float b, float c, float d, std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}

}  // namespace mhla::sm90
