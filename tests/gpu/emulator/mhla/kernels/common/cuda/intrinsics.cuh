// Stands in for the real file when kernels run in the emulator.
#pragma once

#include <bit>
#include <cstring>

#include "mhla/core/dtype.h"
#include "tests/gpu/emulator/emulator.h"

namespace mhla::cuda {

inline float widen(float x) { return x; }
inline float widen(bf16 x) { return to_f32(x); }
inline float widen(f16 x) { return to_f32(x); }

template <class T>
inline T narrow(float x) {
  if constexpr (std::is_same_v<T, bf16>) return to_bf16(x);
  if constexpr (std::is_same_v<T, f16>) return to_f16(x);
  if constexpr (std::is_same_v<T, float>) return x;
}

inline float round_to_tf32(float x) {  // ties away from zero, as cvt.rna does
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
}

inline float cut_to_tf32(float x) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & ~0x1fffu); }

inline void multiply_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  const float mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const float* const all = emulator::warp_exchange(mine, 6);
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, q = lane % 4;
  for (int e = 0; e < 4; ++e) {
    const int row = g + e / 2 * 8, column = 2 * q + e % 2;
    double sum = c[e];
    for (int k = 0; k < 8; ++k) {
      const float x = all[(row % 8 * 4 + k % 4) * 6 + row / 8 + k / 4 * 2];
      const float y = all[(column * 4 + k % 4) * 6 + 4 + k / 4];
      sum += static_cast<double>(cut_to_tf32(x)) * cut_to_tf32(y);
    }
    c[e] = static_cast<float>(sum);
  }
}

// Addresses of shared memory are those of the host here.
inline const bf16* shared_address(const bf16* p) { return p; }

template <bool kTransposed>
inline void load_matrices(std::uint32_t (&r)[4], const bf16* row) {
  float mine[2];
  static_assert(sizeof(mine) == sizeof(void*));
  std::memcpy(mine, &row, sizeof(mine));
  const float* const all = emulator::warp_exchange(mine, 2);
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, q = lane % 4;
  for (int m = 0; m < 4; ++m) {
    const auto element = [&](int i, int j) {
      const bf16* from;
      std::memcpy(&from, all + (8 * m + i) * 2, sizeof(mine));
      return std::uint32_t{from[j].bits};
    };
    r[m] =
        kTransposed ? element(2 * q, g) | element(2 * q + 1, g) << 16 : element(g, 2 * q) | element(g, 2 * q + 1) << 16;
  }
}
inline void load_matrices(std::uint32_t (&r)[4], const bf16* row) { load_matrices<false>(r, row); }
inline void load_matrices_transposed(std::uint32_t (&r)[4], const bf16* row) { load_matrices<true>(r, row); }

inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const std::uint32_t bits[6] = {a[0], a[1], a[2], a[3], b0, b1};
  float mine[6];
  std::memcpy(mine, bits, sizeof(mine));
  const float* const all = emulator::warp_exchange(mine, 6);
  const auto element = [&](int lane, int word, int half) {
    std::uint32_t pair;
    std::memcpy(&pair, all + lane * 6 + word, sizeof(pair));
    return static_cast<double>(to_f32(bf16{static_cast<std::uint16_t>(pair >> (16 * half))}));
  };
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, q = lane % 4;
  for (int e = 0; e < 4; ++e) {
    const int row = g + e / 2 * 8, column = 2 * q + e % 2;
    double sum = c[e];
    for (int k = 0; k < 16; ++k) {
      sum += element(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) *
             element(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    }
    c[e] = static_cast<float>(sum);
  }
}

inline std::uint32_t pack_bf16(float low, float high) {
  return std::uint32_t{to_bf16(low).bits} | std::uint32_t{to_bf16(high).bits} << 16;
}

inline void prefetch_line(const void* /*global*/) {}

inline char* shared_address(const void* p) { return static_cast<char*>(const_cast<void*>(p)); }
inline void copy16(char* shared, const void* global, bool valid) {
  valid ? std::memcpy(shared, global, 16) : std::memset(shared, 0, 16);
}
inline void copy_commit() {}
template <int kPending>
inline void copy_wait() {}

inline void wait_for_previous() {}
inline void allow_next() {}

inline float lane_value(float x, int lane) { return emulator::warp_exchange(&x, 1)[lane]; }

inline float warp_sum(float x) {
  for (int away = 16; away > 0; away /= 2) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    x += emulator::warp_exchange(&x, 1)[lane ^ away];
  }
  return x;
}

}  // namespace mhla::cuda
