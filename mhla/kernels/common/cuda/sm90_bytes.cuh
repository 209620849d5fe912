// Bytes that the copy engine of Hopper moves without a tensor map: a multiple of 16, from and to multiples of 16.
#pragma once

#include <cstdint>

namespace mhla::sm90 {

// To shared memory; they arrive at `barrier`.
__device__ inline void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

// To the second-level cache.
__device__ inline void prefetch_bytes(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace mhla::sm90
