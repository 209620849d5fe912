// Products of a warpgroup, four warps at once (wgmma), bf16 operands, f32 sums. Operands in shared memory are panels:
// rows of 64 values, 128 bytes, whose 16-byte pieces are swizzled among eight rows. A panel begins at a multiple of
// kPanelAlign.
//   Accumulator  [64 x 64]: warp w holds rows 16 w to 16 w + 15, tile j of 8 columns is acc[j], laid out as C of mma
// Sums become readable with warpgroup_wait<>(); until then neither they nor fragments of A may be touched.
#pragma once

#include <cstdint>

#include "mhla/kernels/common/cuda/tensor_core.cuh"

namespace mhla::cuda {

inline constexpr int kPanelRowBytes = 128, kPanelAlign = 1024;

// Where the first panel in a block's shared memory begins.
__device__ inline char* aligned_panels(char* shared) {
  return shared + (kPanelAlign - shared_address(shared) % kPanelAlign) % kPanelAlign;
}

// Where piece c (8 values) of a row lies in a panel.
__device__ inline int panel_offset(int row, int c) { return row * kPanelRowBytes + (c ^ row % 8) * 16; }

// Shared memory as wgmma wants it described: address, bytes between groups of eight rows, swizzle of 128 bytes.
__device__ inline std::uint64_t panel_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 8 * kPanelRowBytes / 16, kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}
// Added to a descriptor: 16 values further along the rows, or 16 rows further.
inline constexpr std::uint64_t kNextColumns = 32 / 16, kNextRows = 16 * kPanelRowBytes / 16;

// Ordinary writes to shared memory become visible to the products that follow a barrier.
__device__ inline void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void warpgroup_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>  // at most so many groups stay in flight
__device__ inline void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// All threads of a warpgroup; barrier 0 is that of __syncthreads().
__device__ inline void warpgroup_barrier(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
// Whether `holds` holds for all of `threads` that meet at a barrier.
__device__ inline bool all_hold(int barrier, int threads, bool holds) {
  std::uint32_t all;
  asm volatile(
      "{\n.reg .pred holds, all;\nsetp.ne.b32 holds, %1, 0;\nbarrier.red.and.pred all, %2, %3, holds;\nselp.u32 %0, "
      "1, 0, all;\n}"
      : "=r"(all)
      : "r"(static_cast<std::uint32_t>(holds)), "r"(barrier), "r"(threads)
      : "memory");
  return all != 0;
}
// The warpgroup of a thread, known to be the same for all threads of a warp.
__device__ inline int warpgroup_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0); }

using Accumulator = float[8][4];

#define MHLA_SUMS(c)                                                                                           \
  "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),     \
      "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), \
      "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), \
      "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), \
      "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
#define MHLA_32_SUMS                                                                                                \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}"

// Whatever was done to c by ordinary instructions is done before what follows.
__device__ inline void settle_sums(Accumulator& c) { asm volatile("" : MHLA_SUMS(c)::"memory"); }
__device__ inline void settle_sums(float (&c)[4]) {
  asm volatile("" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])::"memory");
}

// c (+)= A B^T over 16 columns of two panels: 64 rows of A from `a` on, 64 rows of B from `b` on.
__device__ inline void multiply_panels(Accumulator& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " MHLA_32_SUMS ", %32, %33, add, 1, 1, 0, 0;\n}"
      : MHLA_SUMS(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c += A B over 16 rows of a panel: 16 columns of A as fragments of the four warps, rows of B from `b` on.
__device__ inline void multiply_panel_rows(Accumulator& c, const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " MHLA_32_SUMS
      ", {%32, %33, %34, %35}, %36, add, 1, 1, "
      "1;\n}"
      : MHLA_SUMS(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// c (+)= A B over 16 columns of a panel and 16 rows of another one: 64 rows of A from `a` on, rows of B from `b` on.
__device__ inline void multiply_panel_by_rows(Accumulator& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " MHLA_32_SUMS ", %32, %33, add, 1, 1, 0, 1;\n}"
      : MHLA_SUMS(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c (+)= A B^T over 16 columns of a panel: 16 columns of A as fragments of the four warps, 64 rows of B from `b` on.
__device__ inline void multiply_panel_columns(Accumulator& c, const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " MHLA_32_SUMS
      ", {%32, %33, %34, %35}, %36, add, 1, 1, "
      "0;\n}"
      : MHLA_SUMS(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

// c += A 1: the sums of 16 columns of A, as fragments, in column 0 of c (and in the seven others). `ones`: eight rows
// of a panel that hold nothing but 1.
__device__ inline void add_row_sums(float (&c)[4], const std::uint32_t (&a)[4], std::uint64_t ones) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, add, 1, 1, 0;\n}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(ones));
}

#undef MHLA_SUMS
#undef MHLA_32_SUMS

// c = A B^T, 64 rows of 64 values on both sides.
__device__ inline void multiply_squares(Accumulator& c, std::uint64_t a, std::uint64_t b) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    multiply_panels(c, a + step * kNextColumns, b + step * kNextColumns, step > 0);
  }
}
// c += A B, A as four steps of fragments, 64 rows of B.
__device__ inline void multiply_square_rows(Accumulator& c, const std::uint32_t (&a)[4][4], std::uint64_t b) {
#pragma unroll
  for (int step = 0; step < 4; ++step) multiply_panel_rows(c, a[step], b + step * kNextRows);
}

// An Accumulator as fragments of four steps of 16 columns.
__device__ inline void square_fragments(const Accumulator& c, std::uint32_t (&a)[4][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[step][i] = pack_bf16(c[2 * step + i / 2][i % 2 * 2], c[2 * step + i / 2][i % 2 * 2 + 1]);
    }
  }
}

// f(tile of 8, value, column) for the values of this lane in 16 columns from step * 16 on: column from 0.
template <class F>
__device__ inline void each_of_step(int step, const F& f) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f(2 * step + tile, i, tile * 8 + threadIdx.x % 4 * 2 + i % 2);
  }
}

}  // namespace mhla::cuda
