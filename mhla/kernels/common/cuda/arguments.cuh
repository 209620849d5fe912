// Arguments of a launch come from memory when they are first used, hundreds of cycles each line.
#pragma once

#include "mhla/kernels/common/cuda/intrinsics.cuh"

namespace mhla::cuda {

// Has all of them brought near: for kernels that wait for the previous one anyway.
template <class Job>
__device__ inline void expect_arguments(const Job& job) {
  constexpr int kLine = 16;  // words
  const auto* const words = reinterpret_cast<const std::uint32_t*>(&job);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Job) / sizeof(std::uint32_t)); i += kLine)
    asm volatile("" ::"r"(words[i]));
}

}  // namespace mhla::cuda
