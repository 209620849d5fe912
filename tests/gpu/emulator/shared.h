// Shared memory of the block that runs. An address is the distance from where dynamic shared memory begins, and 1 KiB,
// which a real card keeps for itself. The blocks of a cluster have their memory at the same place, one at a time; that
// of the others lies aside.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator {

inline constexpr std::size_t kMostShared = 227 << 10;
inline constexpr std::uint32_t kSharedBase = 1024;

extern __thread char shared_memory[] asm("emulator_shared_memory");  // kMostShared bytes and a margin

inline std::uint32_t address_of(const void* p) {
  return static_cast<std::uint32_t>(static_cast<const char*>(p) - shared_memory) + kSharedBase;
}

inline constexpr int kMostBlocks = 8;  // of a cluster

void put_in_place(int block);  // of the cluster
// An address of dynamic shared memory for all blocks of the cluster: of the one in place, unless it is that of another
// already.
std::uint32_t cluster_address(std::uint32_t address);
std::uint32_t cluster_address(std::uint32_t address, int block);
int block_of(std::uint32_t cluster_address);               // whose memory it is
std::uint32_t own_address(std::uint32_t cluster_address);  // as that block sees it

// Where an address lies. Ends the launch if `bytes` from there on are not memory of this launch, or not aligned.
char* place_of(std::uint32_t address, std::size_t bytes, std::size_t align, const char* what);

// For the beginning and end of the blocks of a cluster: all memory NaN; whether something behind its end was written.
void spoil_shared(std::size_t bytes, int blocks);
void check_shared_end(std::size_t bytes, int blocks);

}  // namespace emulator
