// Stands in for the real file when kernels run in the emulator; what is not an instruction is the same.
#pragma once

#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::cuda {

inline constexpr int kNarrowRowBytes = 64;

inline int narrow_offset(int row, int c) { return row * kNarrowRowBytes + (c ^ row / 2 % 4) * 16; }

inline std::uint64_t narrow_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 8 * kNarrowRowBytes / 16, kSwizzle64 = 2;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle64 << 62;
}
inline constexpr std::uint64_t kNextNarrowRows = 16 * kNarrowRowBytes / 16;

using NarrowSums = float[4][4];

inline void settle_sums(NarrowSums& /*c*/) {}

inline void multiply_transposed_by_narrow(NarrowSums& c, std::uint64_t a, std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], 32, nullptr, a, b, true, true, add});
}
inline void multiply_narrow_rows(NarrowSums& c, const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], 32, a, 0, b, false, true, add});
}
inline void multiply_half_panels(NarrowSums& c, std::uint64_t a, std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], 32, nullptr, a, b, false, false, add});
}

}  // namespace mhla::cuda
