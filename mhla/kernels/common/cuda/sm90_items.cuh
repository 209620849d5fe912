// Items of a launch, each for whichever block of threads is free: multiprocessors do not get memory equally fast. What
// that gains, and where it gains nothing: mhla/kernels/bidirectional/README.md.
//
// All roles of a block walk over the same items. The first item of a block is its own number. The others are taken from
// a counter in memory (Arguments::maybe_taken) by one lane, the leader, which asks for the next one while the block is
// still at this one, and tells the others through shared memory. Which block computes an item changes no bit of it.
#pragma once

#include "mhla/kernels/common/cuda/sm90_ring.cuh"

namespace mhla::sm90 {

// Two places in shared memory for numbers on their way, each with two barriers.
struct ItemQueue {
  static constexpr int kPlaces = 2;
  static_assert(kPlaces * 24 == kItemQueueBytes);
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
  static constexpr std::uint32_t kNone = 0xffffffffu;
  const ItemQueue& queue;
  bool leads;
  int item;
  RingPlace<ItemQueue::kPlaces> place;  // also of what a kernel brings once for each item, in a ring of two
  std::uint32_t ahead = kNone;          // the leader's: on its way from the counter

  __device__ ItemWalk(const ItemQueue& queue_, bool leads_)
      : queue(queue_), leads(leads_), item(static_cast<int>(blockIdx.x)) {}
  [[nodiscard]] __device__ bool more() const { return item < queue.items; }
  __device__ void next() {
    if (queue.maybe_taken == nullptr) {
      item += static_cast<int>(gridDim.x);
    } else {
      if (leads) tell();
      barrier_wait(queue.told(place.stage), place.parity);
      item = static_cast<int>(shared_word(queue.number(place.stage)));
      barrier_arrive(queue.heard(place.stage));
    }
    place.next();
  }

 private:
  __device__ void tell() {
    if (ahead == kNone) {  // a kernel before this one has cleared the counter
      after_previous();
      ahead = cuda::count_up(queue.maybe_taken);
    }
    barrier_wait(queue.heard(place.stage), place.parity ^ 1);
    set_shared_word(queue.number(place.stage), gridDim.x + ahead);
    barrier_arrive(queue.told(place.stage));
    ahead = cuda::count_up(queue.maybe_taken);
  }
};

}  // namespace mhla::sm90
