#include "tests/gpu/emulator/shared.h"

#include <cstring>

#include "tests/gpu/emulator/emulator.h"

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

}  // namespace

char* place_of(std::uint32_t address, std::size_t bytes, std::size_t align, const char* what) {
  const auto from = static_cast<std::int32_t>(address - kSharedBase);
  char* const place = shared_memory + from;
  const bool dynamic = from >= 0 && static_cast<std::size_t>(from) < kMostShared + kMargin;
  if (dynamic && static_cast<std::size_t>(from) + bytes > bytes_of_launch)
    wrong("%s: %zu bytes at %d of %zu bytes of shared memory", what, bytes, from, bytes_of_launch);
  if (!dynamic && (from > static_cast<std::int32_t>(kStatic) || from < -static_cast<std::int32_t>(kStatic)))
    wrong("%s: address 0x%x is outside of shared memory", what, address);
  if (reinterpret_cast<std::uintptr_t>(place) % align != 0)
    wrong("%s: address %d is no multiple of %zu", what, from, align);
  return place;
}

void spoil_shared(std::size_t bytes) {
  if (bytes > kMostShared) wrong("%zu bytes of shared memory, at most %zu", bytes, kMostShared);
  bytes_of_launch = bytes;
  std::memset(shared_memory, 0xff, bytes);
  std::memset(shared_memory + bytes, 0xa5, kMargin);
}

void check_shared_end(std::size_t bytes) {
  for (std::size_t i = bytes; i < bytes + kMargin; ++i) {
    if (shared_memory[i] != '\xa5') wrong("written behind the end of shared memory: byte %zu of %zu", i, bytes);
  }
}

}  // namespace emulator
