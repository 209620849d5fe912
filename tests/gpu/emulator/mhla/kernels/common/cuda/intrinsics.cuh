// Stands in for the real file when kernels run in the emulator.
#pragma once

#include <bit>

#include "emulator.h"
#include "mhla/core/dtype.h"

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

inline float warp_sum(float x) {
  for (int away = 16; away > 0; away /= 2) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    x += emulator::warp_exchange(&x, 1)[lane ^ away];
  }
  return x;
}

}  // namespace mhla::cuda
