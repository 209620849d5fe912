// Stands in for the real file when kernels run in the emulator.
#pragma once

#include "tests/gpu/emulator/copies.h"

namespace mhla::sm90 {

inline void copy_bytes(std::uint32_t to, const void* from, int bytes, std::uint32_t barrier) {
  emulator::load_bytes(to, from, bytes, barrier);
}
inline void prefetch_bytes(const void* from, int bytes) { emulator::check_bytes("prefetch", from, bytes); }

}  // namespace mhla::sm90
