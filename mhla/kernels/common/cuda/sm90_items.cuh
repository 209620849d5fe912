// Items of a launch, each for whichever block of threads is free. Multiprocessors do not get memory equally fast: where
// every block takes as many items, the first blocks are done in half the time of the last (H200).
//
// All roles of a block walk over the same items. The first item of a block is its own number. The others are taken from
// a counter in memory (Arguments::maybe_taken) by one lane, the leader, which asks for the next one while the block is
// still at this one, and tells the others through shared memory. Which block computes an item changes no bit of it.
#pragma once

#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/common/cuda/sm90_barriers.cuh"
#include "mhla/kernels/common/cuda/tensor_core.cuh"

namespace mhla::sm90 {

// Two places in shared memory for numbers on their way, each with two barriers.
struct ItemQueue {
  static constexpr int kPlaces = 2, kBytes = kPlaces * 24;
  std::uint32_t base;          // of its shared memory, a multiple of 8
  std::uint32_t* maybe_taken;  // items that were taken so far beside the first ones; not given: every gridDim.x-th
  int items;

  [[nodiscard]] __device__ std::uint32_t told(int place) const { return base + place * 8; }
  [[nodiscard]] __device__ std::uint32_t heard(int place) const { return base + (kPlaces + place) * 8; }
  [[nodiscard]] __device__ std::uint32_t number(int place) const { return base + (2 * kPlaces + place) * 8; }
  // By one thread, before __syncthreads(); `walkers`: threads that have an ItemWalk, the leader too.
  __device__ void init(int walkers) const {
    for (int place = 0; place < kPlaces; ++place) barrier_init(told(place), 1), barrier_init(heard(place), walkers);
  }
};

// Where a thread stands. Exactly one thread of a block is the leader, one of those that copy: they are ahead.
struct ItemWalk {
  const ItemQueue& queue;
  bool leads;
  int item, count = 0;
  std::uint32_t ahead = 0;  // the leader's: on its way from the counter

  // The leader calls after whatever cleared the counter has ended.
  __device__ ItemWalk(const ItemQueue& queue_, bool leads_)
      : queue(queue_), leads(leads_), item(static_cast<int>(blockIdx.x)) {
    if (leads && queue.maybe_taken != nullptr) ahead = cuda::count_up(queue.maybe_taken);
  }
  [[nodiscard]] __device__ bool more() const { return item < queue.items; }
  __device__ void next() {
    if (queue.maybe_taken == nullptr) {
      item += static_cast<int>(gridDim.x);
      return;
    }
    const int place = count & 1, parity = count >> 1 & 1;
    if (leads) {
      barrier_wait(queue.heard(place), parity ^ 1);
      cuda::set_shared_word(queue.number(place), gridDim.x + ahead);
      barrier_arrive(queue.told(place));
      ahead = cuda::count_up(queue.maybe_taken);
    }
    barrier_wait(queue.told(place), parity);
    item = static_cast<int>(cuda::shared_word(queue.number(place)));
    barrier_arrive(queue.heard(place));
    ++count;
  }
};

}  // namespace mhla::sm90
