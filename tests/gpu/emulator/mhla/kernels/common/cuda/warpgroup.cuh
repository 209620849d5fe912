// Stands in for the real file when kernels run in the emulator; what is not an instruction is the same.
#pragma once

#include <cstdint>

#include "mhla/kernels/common/cuda/tensor_core.cuh"

namespace mhla::cuda {

inline constexpr int kPanelRowBytes = 128, kPanelAlign = 1024;

inline char* aligned_panels(char* shared) {
  return shared + (kPanelAlign - shared_address(shared) % kPanelAlign) % kPanelAlign;
}
inline int panel_offset(int row, int c) { return row * kPanelRowBytes + (c ^ row % 8) * 16; }

inline std::uint64_t panel_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 8 * kPanelRowBytes / 16, kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}
inline constexpr std::uint64_t kNextColumns = 32 / 16, kNextRows = 16 * kPanelRowBytes / 16;

inline void publish_shared() {}
inline void warpgroup_begin() {}
inline void warpgroup_commit() { emulator::commit_products(); }
template <int kPending>
inline void warpgroup_wait() {
  emulator::wait_products(kPending);
}
inline void warpgroup_barrier(int group) { named_barrier(group + 1, 128); }
inline bool all_hold(int barrier, int threads, bool holds) { return emulator::block_barrier(holds, barrier, threads); }
inline int warpgroup_index() { return static_cast<int>(threadIdx.x) / 128; }

using Accumulator = float[8][4];

inline void settle_sums(Accumulator& /*c*/) {}
inline void settle_sums(float (&/*c*/)[4]) {}

inline void multiply_panels(Accumulator& c, std::uint64_t a, std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], 64, nullptr, a, b, false, false, add});
}
inline void multiply_panel_rows(Accumulator& c, const std::uint32_t (&a)[4], std::uint64_t b) {
  emulator::issue_product({&c[0][0], 64, a, 0, b, false, true, true});
}
inline void multiply_panel_by_rows(Accumulator& c, std::uint64_t a, std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], 64, nullptr, a, b, false, true, add});
}
inline void multiply_panel_columns(Accumulator& c, const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  emulator::issue_product({&c[0][0], 64, a, 0, b, false, false, add});
}
inline void add_row_sums(float (&c)[4], const std::uint32_t (&a)[4], std::uint64_t ones) {
  emulator::issue_product({c, 8, a, 0, ones, false, false, true});
}

inline void multiply_squares(Accumulator& c, std::uint64_t a, std::uint64_t b) {
  for (int step = 0; step < 4; ++step) multiply_panels(c, a + step * kNextColumns, b + step * kNextColumns, step > 0);
}
inline void multiply_square_rows(Accumulator& c, const std::uint32_t (&a)[4][4], std::uint64_t b) {
  for (int step = 0; step < 4; ++step) multiply_panel_rows(c, a[step], b + step * kNextRows);
}
inline void square_fragments(const Accumulator& c, std::uint32_t (&a)[4][4]) {
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 4; ++i)
      a[step][i] = pack_bf16(c[2 * step + i / 2][i % 2 * 2], c[2 * step + i / 2][i % 2 * 2 + 1]);
  }
}
template <class F>
inline void each_of_step(int step, const F& f) {
  for (int tile = 0; tile < 2; ++tile) {
    for (int i = 0; i < 4; ++i) f(2 * step + tile, i, tile * 8 + threadIdx.x % 4 * 2 + i % 2);
  }
}

}  // namespace mhla::cuda
