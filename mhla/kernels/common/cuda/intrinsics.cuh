// The few instructions that have no name in C++, one function each; those of bf16 stand in tensor_core.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "mhla/core/dtype.h"
#include "mhla/kernels/common/cuda/tensor_core.cuh"  // products of bf16

namespace mhla::cuda {

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(bf16 x) { return __uint_as_float(std::uint32_t{x.bits} << 16); }
__device__ inline float widen(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

// Rounds to nearest, ties to even.
template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 narrow<bf16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <>
__device__ inline f16 narrow<f16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}

// TF32: the range of f32 with the 11 significant bits of f16, so it holds bf16 and f16 exactly. What a tensor core
// would cut off is rounded away first.
__device__ inline float round_to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// c += a b for a 16 x 8 tile of f32 sums, 8 products deep. Lane 4 g + q holds
//   a: (row g, k q), (g + 8, q), (g, q + 4), (g + 8, q + 4)    b: (k q, column g), (q + 4, g)
//   c: (row g, column 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1)
__device__ inline void multiply_tf32(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// Asks for a line of 128 bytes to be in the second-level cache soon.
__device__ inline void prefetch_line(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// 16 bytes to memory in one piece, without a branch.
__device__ inline void store16_where(bool there, void* to, const uint4& y) {
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.s32 there, %5, 0;\n@there st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(to),
      "r"(y.x), "r"(y.y), "r"(y.z), "r"(y.w), "r"(static_cast<int>(there))
      : "memory");
}

// threadIdx.x as the register that holds it, read again at every call.
__device__ inline int thread_now() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Adds 1 to a counter in memory; what it was before.
__device__ inline std::uint32_t count_up(std::uint32_t* counter) { return atomicAdd(counter, 1u); }

// Programmatic launch: a kernel that was started early reads nothing that the previous one writes, and writes
// nothing that it reads, before wait_for_previous(), which returns when all previous ones have ended. allow_next() lets
// the next kernel start early; after wait_for_previous() it promises that everything before this kernel has ended.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline float lane_value(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

// Sum over the lanes of a warp, the same bits in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int away = 16; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
  return x;
}

}  // namespace mhla::cuda
