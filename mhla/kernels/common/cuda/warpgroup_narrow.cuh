// Products of a warpgroup with 32 columns. Their right side are narrow panels: rows of 32 values, 64 bytes, whose
// 16-byte pieces are swizzled among four pairs of rows; or 32 rows of a panel of 64 values.
//   NarrowSums  [64 x 32]: as Accumulator in warpgroup.cuh, four tiles of 8 columns
#pragma once

#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::cuda {

inline constexpr int kNarrowRowBytes = 64;

// Where piece c (8 values) of a row lies in a narrow panel.
__device__ inline int narrow_offset(int row, int c) { return row * kNarrowRowBytes + (c ^ row / 2 % 4) * 16; }

__device__ inline std::uint64_t narrow_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 8 * kNarrowRowBytes / 16, kSwizzle64 = 2;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle64 << 62;
}
// Added to a descriptor: 16 rows further.
inline constexpr std::uint64_t kNextNarrowRows = 16 * kNarrowRowBytes / 16;

using NarrowSums = float[4][4];

#define MHLA_NARROW_SUMS(c)                                                                                    \
  "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),     \
      "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]), \
      "+f"(c[3][2]), "+f"(c[3][3])
#define MHLA_16_SUMS "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"

// Whatever was done to c by ordinary instructions is done before what follows.
__device__ inline void settle_sums(NarrowSums& c) { asm volatile("" : MHLA_NARROW_SUMS(c)::"memory"); }

// c (+)= A^T B over 16 rows: 64 columns of a panel from `a` on, rows of a narrow panel from `b` on.
__device__ inline void multiply_transposed_by_narrow(NarrowSums& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " MHLA_16_SUMS ", %16, %17, add, 1, 1, 1, 1;\n}"
      : MHLA_NARROW_SUMS(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// c (+)= A B over 16 rows of a narrow panel: 16 columns of A as fragments of the four warps.
__device__ inline void multiply_narrow_rows(NarrowSums& c, const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " MHLA_16_SUMS
      ", {%16, %17, %18, %19}, %20, add, 1, 1, "
      "1;\n}"
      : MHLA_NARROW_SUMS(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

// c (+)= A B^T over 16 columns of two panels of 64 values: 64 rows of A from `a` on, 32 rows of B from `b` on.
__device__ inline void multiply_half_panels(NarrowSums& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " MHLA_16_SUMS ", %16, %17, add, 1, 1, 0, 0;\n}"
      : MHLA_NARROW_SUMS(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

#undef MHLA_NARROW_SUMS
#undef MHLA_16_SUMS

}  // namespace mhla::cuda
