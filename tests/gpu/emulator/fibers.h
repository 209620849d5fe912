// For the parts of the emulator: the thread that runs, waiting and waking.
#pragma once

#include <cstdint>

#include "tests/gpu/emulator/emulator.h"

namespace emulator {

enum class Wait : std::uint8_t { kNothing, kBlock, kWarp, kMbarrier, kProducts, kPrevious, kCluster };

inline constexpr int kMostThreads = 4096, kWarpLanes = 32, kGroupLanes = 128;  // threads of a cluster

int this_thread();  // of the cluster; -1 outside of a kernel
int threads_of_cluster();
bool block_ended(int block);  // of the cluster

// Leaves until somebody wakes it. `where` and `detail` tell waits apart: an address and a parity, a barrier and a
// count.
void wait_for(Wait kind, std::uint32_t where, int detail);
// Those who wait there go on.
void wake(Wait kind, std::uint32_t where);

// What the parts do when a cluster begins or ends, which is a block where nothing else is said.
void begin_copies();
void end_copies();
void begin_products();
// Nobody can go on: lets something that is on its way arrive. False: nothing is.
bool deliver_copies();

// For the report of a deadlock.
struct BarrierState {
  bool there;
  int pending, count, parity;
  std::int64_t bytes;
};
BarrierState mbarrier_state(std::uint32_t address);

}  // namespace emulator
