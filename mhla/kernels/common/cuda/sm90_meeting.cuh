// Warpgroups that meet, each at an instruction of its own. The barriers of the hardware (named_barrier(), all_hold())
// would do, but synccheck takes threads that come to one at another instruction for missing.
#pragma once

#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/tensor_core.cuh"

namespace mhla::sm90 {

// Everybody comes equally often.
struct Meeting {
  static constexpr int kBytes = 8;
  std::uint32_t barrier;
  int parity = 0;
  __device__ void init(int threads) const { barrier_init(barrier, threads); }  // by one thread, before __syncthreads()
  __device__ void meet() {
    barrier_arrive(barrier);
    barrier_wait(barrier, parity);
    parity ^= 1;
  }
};

// Eight warps ask whether something holds for all of them. Each says so in a word of its own, in one of two places in
// turn: who writes to a place has come from the meeting after the one at which it was read.
struct Vote {
  static constexpr int kWarps = 8, kWordsAt = 16, kBytes = kWordsAt + 2 * kWarps * 4;
  Meeting meeting;  // at a multiple of 16
  __device__ void init() const { meeting.init(kWarps * 32); }
  __device__ bool all_hold(int warp, bool holds) {
    const std::uint32_t words = meeting.barrier + kWordsAt + meeting.parity * kWarps * 4;
    holds = __all_sync(0xffffffffu, holds);
    if (threadIdx.x % 32 == 0) cuda::set_shared_word(words + warp * 4, holds ? 0u : 1u);
    meeting.meet();
    const uint4 x = cuda::shared_words(words), y = cuda::shared_words(words + 16);
    return (x.x | x.y | x.z | x.w | y.x | y.y | y.z | y.w) == 0;
  }
};

}  // namespace mhla::sm90
