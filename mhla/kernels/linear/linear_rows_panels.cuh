// Products of a warpgroup (warpgroup.cuh) for few rows: panels of half the width, which waste less where a slice of K
// is no multiple of 64, and 16 or 32 rows of the second operand.
#pragma once

#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::cuda {

// Rows of 32 values: their pieces are swizzled among pairs of rows, and a panel begins at a
// multiple of 512 bytes.
inline constexpr int kHalfPanelColumns = 32, kHalfPanelRowBytes = 64;
__device__ inline int half_panel_offset(int row, int c) { return row * kHalfPanelRowBytes + (c ^ row / 2 % 4) * 16; }
__device__ inline std::uint64_t half_panel_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 8 * kHalfPanelRowBytes / 16, kSwizzle64 = 2;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle64 << 62;
}

// c (+)= A B^T over 16 columns of two panels, 16 or 32 rows of B.
__device__ inline void multiply_panels(float (&c)[2][4], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, add, 1, 1, 0, "
      "0;\n}"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_panels(float (&c)[4][4], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, %16, %17, add, 1, 1, 0, 0;\n}"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]),
        "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), "+f"(c[3][0]), "+f"(c[3][1]),
        "+f"(c[3][2]), "+f"(c[3][3])
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

template <int kTiles>
__device__ inline void settle_sums(float (&c)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) settle_sums(c[j]);
}

}  // namespace mhla::cuda
