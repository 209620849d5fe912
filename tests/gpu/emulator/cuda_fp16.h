// Stands in for the real file when kernels run in the emulator.
#pragma once

#include <cstdint>

#include "mhla/core/dtype.h"

struct __half {
  std::uint16_t bits;
};
inline float __half2float(__half x) { return mhla::to_f32(mhla::f16{x.bits}); }
inline __half __float2half_rn(float x) { return {mhla::to_f16(x).bits}; }
inline std::uint16_t __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(std::uint16_t bits) { return {bits}; }
