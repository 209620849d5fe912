// Stands in for the real file when kernels run in the emulator.
#pragma once

#include <cmath>
#include <cstdint>

#include "mhla/core/dtype.h"
#include "tests/gpu/emulator/language.h"

struct __nv_bfloat16 {
  std::uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 x) { return mhla::to_f32(mhla::bf16{x.bits}); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {mhla::to_bf16(x).bits}; }
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
inline std::uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(std::uint16_t bits) { return {bits}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return __floats2bfloat162_rn(x, x); }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {__bfloat162float(x.x), __bfloat162float(x.y)}; }
inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) {
  const float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b);
  return __floats2bfloat162_rn(x.x + y.x, x.y + y.y);
}
inline __nv_bfloat162 __hmax2_nan(__nv_bfloat162 a, __nv_bfloat162 b) {
  const float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b);
  const auto more = [](float c, float d) { return c != c ? c : d != d ? d : c > d ? c : d == c ? c + d : d; };
  return __floats2bfloat162_rn(more(x.x, y.x), more(x.y, y.y));
}
inline std::uint32_t __hle2_mask(__nv_bfloat162 a, __nv_bfloat162 b) {
  const float2 x = __bfloat1622float2(a), y = __bfloat1622float2(b);
  return (x.x <= y.x ? 0xffffu : 0u) | (x.y <= y.y ? 0xffff0000u : 0u);
}
