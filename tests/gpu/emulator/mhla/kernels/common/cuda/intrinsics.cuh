// Stands in for the real file when kernels run in the emulator.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>

#include "mhla/core/dtype.h"
#include "mhla/kernels/common/cuda/tensor_core.cuh"
#include "tests/gpu/emulator/previous.h"

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
  struct Mine {
    float* c;
    const float *a, *b;
  };
  Mine mine{c, a, b};
  emulator::warp_meet("mma of tf32", &mine, [](void* const(&lanes)[32]) {
    double x[16][8], y[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& own = *static_cast<const Mine*>(lanes[lane]);
      for (int i = 0; i < 4; ++i) x[lane / 4 + i % 2 * 8][lane % 4 + i / 2 * 4] = cut_to_tf32(own.a[i]);
      for (int i = 0; i < 2; ++i) y[lane % 4 + i * 4][lane / 4] = cut_to_tf32(own.b[i]);
    }
    for (int lane = 0; lane < 32; ++lane) {
      float* const own = static_cast<const Mine*>(lanes[lane])->c;
      for (int e = 0; e < 4; ++e) {
        double sum = own[e];
        for (int k = 0; k < 8; ++k) sum += x[lane / 4 + e / 2 * 8][k] * y[k][lane % 4 * 2 + e % 2];
        own[e] = static_cast<float>(sum);
      }
    }
  });
}

inline void prefetch_line(const void* /*global*/) {}
inline std::uint32_t count_up(std::uint32_t* counter) { return (*counter)++; }  // one thread runs at a time
inline void store16_where(bool there, void* to, const uint4& y) {
  if (there) std::memcpy(to, &y, 16);
}
inline int thread_now() { return static_cast<int>(threadIdx.x); }

inline void wait_for_previous() { emulator::wait_for_previous(); }
inline void allow_next() {}

inline float lane_value(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

inline float warp_sum(float x) {
  for (int away = 16; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
  return x;
}

}  // namespace mhla::cuda
