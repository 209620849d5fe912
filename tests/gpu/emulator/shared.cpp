#include "tests/gpu/emulator/shared.h"

#include <cstring>

#include "tests/gpu/emulator/fibers.h"

// One buffer with all the names that kernels give to it: `extern __shared__ ... char NAME[]` belongs to the namespace
// of the kernel. .tbss: memory of an OS thread, as `thread_local` says.
#define MHLA_NAME(mangled) ".globl " mangled "\n.type " mangled ", @tls_object\n" mangled ":\n"
#define MHLA_NAMES_OF(space)                \
  MHLA_NAME("_ZN4mhla" space "6memoryE")    \
  MHLA_NAME("_ZN4mhla" space "6sharedE")    \
  MHLA_NAME("_ZN4mhla" space "9unalignedE") \
  MHLA_NAME("_ZN4mhla" space "4keptE")
#define MHLA_NAMES_IN(space) MHLA_NAMES_OF(space) MHLA_NAMES_OF(space "12_GLOBAL__N_1")
asm(".section .tbss,\"awT\",@nobits\n.balign 1024\n" MHLA_NAME("emulator_shared_memory")  //
    MHLA_NAMES_IN("4sm80") MHLA_NAMES_IN("4sm90") MHLA_NAMES_IN("4cuda") MHLA_NAMES_IN("") ".zero 233472\n.text\n");

namespace emulator {

namespace {

constexpr std::size_t kMargin = 1024,
                      kStatic = 64 << 20;  // written by nobody; where other __shared__ variables may lie
std::size_t bytes_of_launch = 0;
constexpr std::uint32_t kBlockStep = 1u << 27;  // between cluster addresses of blocks, the first one included

alignas(1024) char aside[kMostBlocks][kMostShared + kMargin];
int in_place = 0;

bool dynamic(std::uint32_t address) { return address >= kSharedBase && address - kSharedBase < kMostShared + kMargin; }
bool of_cluster(std::uint32_t address) {
  return address / kBlockStep >= 1 && address / kBlockStep <= kMostBlocks && dynamic(address % kBlockStep);
}

}  // namespace

void put_in_place(int block) {
  if (block == in_place) return;
  std::memcpy(aside[in_place], shared_memory, bytes_of_launch + kMargin);
  std::memcpy(shared_memory, aside[block], bytes_of_launch + kMargin);
  in_place = block;
}

std::uint32_t cluster_address(std::uint32_t address, int block) {
  return address + (static_cast<std::uint32_t>(block) + 1) * kBlockStep;
}
std::uint32_t cluster_address(std::uint32_t address) {
  return dynamic(address) ? cluster_address(address, in_place) : address;
}
int block_of(std::uint32_t address) {
  return of_cluster(address) ? static_cast<int>(address / kBlockStep) - 1 : in_place;
}
std::uint32_t own_address(std::uint32_t address) { return of_cluster(address) ? address % kBlockStep : address; }

char* place_of(std::uint32_t address, std::size_t bytes, std::size_t align, const char* what) {
  const int block = block_of(address);
  const auto from = static_cast<std::int32_t>(own_address(address) - kSharedBase);
  char* const place = block == in_place ? shared_memory + from : aside[block] + from;
  const bool inside = from >= 0 && static_cast<std::size_t>(from) < kMostShared + kMargin;
  if (block != in_place && block_ended(block)) wrong("%s: block %d of the cluster has ended", what, block);
  if (inside && static_cast<std::size_t>(from) + bytes > bytes_of_launch)
    wrong("%s: %zu bytes at %d of %zu bytes of shared memory", what, bytes, from, bytes_of_launch);
  if (!inside && (from > static_cast<std::int32_t>(kStatic) || from < -static_cast<std::int32_t>(kStatic)))
    wrong("%s: address 0x%x is outside of shared memory", what, address);
  if (reinterpret_cast<std::uintptr_t>(place) % align != 0)
    wrong("%s: address %d is no multiple of %zu", what, from, align);
  return place;
}

void spoil_shared(std::size_t bytes, int blocks) {
  if (bytes > kMostShared) wrong("%zu bytes of shared memory, at most %zu", bytes, kMostShared);
  bytes_of_launch = bytes, in_place = 0;
  for (int block = 0; block < blocks; ++block) {
    char* const memory = block == 0 ? shared_memory : aside[block];
    std::memset(memory, 0xff, bytes);
    std::memset(memory + bytes, 0xa5, kMargin);
  }
}

void check_shared_end(std::size_t bytes, int blocks) {
  for (int block = 0; block < blocks; ++block) {
    put_in_place(block);
    for (std::size_t i = bytes; i < bytes + kMargin; ++i) {
      if (shared_memory[i] != '\xa5') wrong("written behind the end of shared memory: byte %zu of %zu", i, bytes);
    }
  }
}

}  // namespace emulator
