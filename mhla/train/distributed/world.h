// This process among others, as torchrun describes it in the environment:
//   RANK, WORLD_SIZE                     which process of how many
//   LOCAL_RANK, LOCAL_WORLD_SIZE         the same among those of this machine
//   MASTER_ADDR, MASTER_PORT             where the store is that all of them meet at
//   TORCHELASTIC_RESTART_COUNT           how often torchrun has started the job again
//   TORCHELASTIC_USE_AGENT_STORE         True: torchrun (or mhla train --nproc) serves the store, and nobody else may
// Without WORLD_SIZE the process is alone. Plain values, without LibTorch.
#pragma once

#include <cstdlib>
#include <string>

#include "mhla/core/error.h"

namespace mhla::distributed {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  std::string address = "127.0.0.1";
  int port = 29500;
  int restarts = 0;
  bool store_is_served = false;
  bool started = false;  // by torchrun or the like

  [[nodiscard]] bool alone() const { return size == 1; }
  [[nodiscard]] bool leads() const { return rank == 0; }  // the process that prints and writes files
};

inline constexpr int kMostRanks = 65536;

namespace world_detail {

inline const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != 0 ? text : nullptr;
}

// A variable that is a whole number of `least` to `most`, or `otherwise`, where that is one and it is not set.
inline int number_in(const char* name, int least, int most, int otherwise = -1) {
  const char* text = variable(name);
  if (text == nullptr && otherwise >= 0) return otherwise;
  if (text == nullptr) fail("WORLD_SIZE is set, but ", name, " is not, expected both, as torchrun sets them");
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end != 0 || value < least || value > most)
    fail(name, " is '", text, "', expected a whole number from ", least, " to ", most);
  return static_cast<int>(value);
}

}  // namespace world_detail

// Throws mhla::Error naming the variable.
inline World world_from_environment() {
  using namespace world_detail;
  World world;
  if (variable("WORLD_SIZE") == nullptr) return world;
  world.started = true;
  world.size = number_in("WORLD_SIZE", 1, kMostRanks);
  world.rank = number_in("RANK", 0, world.size - 1);
  world.local_rank = number_in("LOCAL_RANK", 0, kMostRanks, world.rank);
  world.local_size = number_in("LOCAL_WORLD_SIZE", 1, world.size, 1);
  world.restarts = number_in("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30, 0);
  if (world.alone()) return world;
  const char* address = variable("MASTER_ADDR");
  if (address == nullptr) fail("WORLD_SIZE is ", world.size, ", but MASTER_ADDR is not set, expected both");
  world.address = address;
  world.port = number_in("MASTER_PORT", 1, 65535);
  const char* served = variable("TORCHELASTIC_USE_AGENT_STORE");
  world.store_is_served = served != nullptr && std::string(served) == "True";
  return world;
}

}  // namespace mhla::distributed
