// Stands in for the real file when kernels run in the emulator.
#pragma once

#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::cuda {

template <int kColumns>
using WideSums = float[kColumns / 8][4];

inline std::uint64_t wide_descriptor(std::uint32_t address, int panel_bytes) {
  constexpr std::uint64_t kUnset = ~(std::uint64_t{0x3fff} << 16);
  return (panel_descriptor(address) & kUnset) | static_cast<std::uint64_t>(panel_bytes / 16) << 16;
}

struct SumsAndRows {
  Accumulator sums;
  float rows[4];
};
inline std::uint64_t beside_ones(std::uint32_t panel, std::uint32_t ones) {
  return wide_descriptor(panel, static_cast<int>(ones - panel));
}
inline constexpr std::uint64_t kNextRowsBesideOnes = kNextRows - (kNextRows << 16);
inline void multiply_rows_and_ones(SumsAndRows& x, const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  emulator::issue_product({&x.sums[0][0], 72, a, 0, b, false, true, add});
}

inline void settle_sums(WideSums<128>& /*c*/) {}
inline void settle_sums(WideSums<256>& /*c*/) {}

template <std::size_t kTiles>
inline void multiply_panel_by_rows(float (&c)[kTiles][4], std::uint64_t a, std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], kTiles * 8, nullptr, a, b, false, true, add});
}
template <std::size_t kTiles>
inline void multiply_fragments_by_rows(float (&c)[kTiles][4], const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], kTiles * 8, a, 0, b, false, true, add});
}
template <std::size_t kTiles>
inline void multiply_transposed_by_rows(float (&c)[kTiles][4], std::uint64_t a, std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], kTiles * 8, nullptr, a, b, true, true, add});
}
inline void add_column_sums(float (&c)[4], std::uint64_t a, std::uint64_t ones) {
  emulator::issue_product({c, 8, nullptr, a, ones, true, false, true});
}

}  // namespace mhla::cuda
