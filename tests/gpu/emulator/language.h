// What CUDA adds to C++: words that say where code runs, vectors, the places of a thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Static in a block as __shared__ is, and may stand behind extern; one block runs at a time. Blocks of a cluster would
// share it: their kernels have dynamic shared memory alone.
#define __shared__ thread_local
#define __CUDA_ARCH__ 900
#define __builtin_assume(what) ((void)0)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  std::uint32_t x, y;
};
struct alignas(16) uint4 {
  std::uint32_t x, y, z, w;
};
struct alignas(16) longlong2 {
  long long x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(std::uint32_t x, std::uint32_t y) { return {x, y}; }
inline uint4 make_uint4(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) { return {x, y, z, w}; }

extern dim3 threadIdx, blockIdx, blockDim, gridDim;  // of the thread that runs

constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr int max(int a, int b) { return a > b ? a : b; }
constexpr unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
constexpr unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
constexpr std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
using std::isfinite;
using std::isnan;

inline float __uint_as_float(std::uint32_t x) { return std::bit_cast<float>(x); }
inline std::uint32_t __float_as_uint(float x) { return std::bit_cast<std::uint32_t>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline int __popc(std::uint32_t x) { return std::popcount(x); }

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcg(T* p, const T& x) {
  *p = x;
}
template <class T>
void __stcs(T* p, const T& x) {
  *p = x;
}
inline void __threadfence() {}
inline void __threadfence_block() {}
