// Stands in for the real file when kernels run in the emulator; what is not an instruction is the same.
#pragma once

#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::cuda {

inline constexpr int kHalfPanelColumns = 32, kHalfPanelRowBytes = 64;
inline int half_panel_offset(int row, int c) { return row * kHalfPanelRowBytes + (c ^ row / 2 % 4) * 16; }
inline std::uint64_t half_panel_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 8 * kHalfPanelRowBytes / 16, kSwizzle64 = 2;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle64 << 62;
}

template <int kTiles>
inline void multiply_panels(float (&c)[kTiles][4], std::uint64_t a, std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], kTiles * 8, nullptr, a, b, false, false, add});
}
template <int kTiles>
inline void settle_sums(float (&/*c*/)[kTiles][4]) {}

}  // namespace mhla::cuda
