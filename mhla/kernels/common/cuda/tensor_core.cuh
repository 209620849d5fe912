// Tensor-core and copy instructions, one function each. Fragments as PTX names them: lane = 4 g + q, g = lane / 4.
//   A (16 x 16)  a[0]: row g, columns 2q, 2q+1   a[1]: row g + 8   a[2], a[3]: the same, columns + 8
//   B (16 x 8)   b[0]: rows 2q, 2q+1, column g   b[1]: rows + 8
//   C (16 x 8)   c[0], c[1]: row g, columns 2q, 2q+1   c[2], c[3]: row g + 8
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace mhla::cuda {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory, or 16 zeros: `global` is not read when not valid.
__device__ inline void copy16(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy8(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(valid ? 8 : 0)
               : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>  // at most so many groups stay in flight
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Shared memory by addresses of 32 bits: registers are scarce.
__device__ inline uint4 shared_words(std::uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}
__device__ inline float4 shared_floats(std::uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(at));
  return x;
}
__device__ inline uint2 shared_pair(std::uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at) : "memory");
  return x;
}
__device__ inline std::uint32_t shared_word(std::uint32_t at) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
__device__ inline void set_shared_words(std::uint32_t at, std::uint32_t x, std::uint32_t y, std::uint32_t z,
                                        std::uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ inline void set_shared_word(std::uint32_t at, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

// Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_two_transposed(std::uint32_t (&r)[2], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// The reverse of load_matrices.
__device__ inline void store_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                      std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ inline void store_two_matrices(std::uint32_t address, std::uint32_t a, std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// c += a b, bf16 operands, f32 sums.
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a b over 8 products: rows g of a, columns 2q and 2q + 1; rows g + 8 are 0.
__device__ inline void multiply_upper(float (&c)[4], std::uint32_t a, std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a), "r"(0), "r"(b));
}

// `threads` of a block meet at one of its barriers; 0 is that of __syncthreads().
__device__ inline void named_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}
__device__ inline float2 unpack_bf16(std::uint32_t pair) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}

// Two values, 0 instead of infinity and NaN.
__device__ inline std::uint32_t finite_pair(std::uint32_t pair) {
  if ((pair & 0x7f80u) == 0x7f80u) pair &= 0xffff0000u;
  if ((pair & 0x7f800000u) == 0x7f800000u) pair &= 0xffffu;
  return pair;
}

// acc[j] += a * B for kTiles tiles of 8 columns, B in shared memory. `row`: address of the row of B that this lane
// provides (rows 0 to 15 by lane % 16), column 0. kFiniteAlone: without values of B that are not finite.
template <int kTiles, bool kFiniteAlone = false>
__device__ inline void multiply_rows(float (&acc)[kTiles][4], const std::uint32_t (&a)[4], std::uint32_t row) {
  const std::uint32_t right = threadIdx.x % 32 / 16 * 16;  // lanes 16 to 31 provide the next 8 columns
#pragma unroll
  for (int j = 0; j + 1 < kTiles; j += 2) {
    std::uint32_t two[4];
    load_matrices_transposed(two, row + j * 16 + right);
    if constexpr (kFiniteAlone) {
#pragma unroll
      for (std::uint32_t& pair : two) pair = finite_pair(pair);
    }
    multiply_add(acc[j], a, two[0], two[1]);
    multiply_add(acc[j + 1], a, two[2], two[3]);
  }
  if constexpr (kTiles % 2 == 1) {
    std::uint32_t one[2];
    load_two_transposed(one, row + (kTiles - 1) * 16);
    if constexpr (kFiniteAlone) one[0] = finite_pair(one[0]), one[1] = finite_pair(one[1]);
    multiply_add(acc[kTiles - 1], a, one[0], one[1]);
  }
}

}  // namespace mhla::cuda
