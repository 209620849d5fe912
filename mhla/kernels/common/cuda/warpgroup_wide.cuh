// Products of a warpgroup with 128 and 256 columns: fewer, larger instructions, which read their left side once. Their
// right side are panels of 64 columns next to each other (warpgroup.cuh), all rows of one before those of the next.
//   WideSums<128>, WideSums<256>  [64 x N]: as Accumulator, N / 8 tiles of 8 columns
// And with 64 columns and one more, of ones: SumsAndRows.
#pragma once

#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::cuda {

template <int kColumns>
using WideSums = float[kColumns / 8][4];

// Panels of 64 columns, `panel_bytes` from one to the next, as the right side of a product over their rows.
__device__ inline std::uint64_t wide_descriptor(std::uint32_t address, int panel_bytes) {
  constexpr std::uint64_t kUnset = ~(std::uint64_t{0x3fff} << 16);  // the bytes between columns, in units of 16
  return (panel_descriptor(address) & kUnset) | static_cast<std::uint64_t>(panel_bytes / 16) << 16;
}

// Accumulator, and beside it the sums of the rows of A in column 0 of `rows` (and in the seven others).
struct SumsAndRows {
  Accumulator sums;
  float rows[4];
};
// A panel as the right side of a product over its rows, with eight columns of ones: `ones`, 16 rows of a panel that
// hold nothing but 1, lie behind it.
__device__ inline std::uint64_t beside_ones(std::uint32_t panel, std::uint32_t ones) {
  return wide_descriptor(panel, static_cast<int>(ones - panel));
}
// Added to it: 16 rows further, with the same ones.
inline constexpr std::uint64_t kNextRowsBesideOnes = kNextRows - (kNextRows << 16);

// clang-format off
#define MHLA_QUAD(c, j) "+f"((c)[j][0]), "+f"((c)[j][1]), "+f"((c)[j][2]), "+f"((c)[j][3])
#define MHLA_8_QUADS(c, j) \
  MHLA_QUAD(c, j), MHLA_QUAD(c, j + 1), MHLA_QUAD(c, j + 2), MHLA_QUAD(c, j + 3), \
  MHLA_QUAD(c, j + 4), MHLA_QUAD(c, j + 5), MHLA_QUAD(c, j + 6), MHLA_QUAD(c, j + 7)
#define MHLA_SUMS_64(c) MHLA_8_QUADS(c, 0)
#define MHLA_SUMS_128(c) MHLA_8_QUADS(c, 0), MHLA_8_QUADS(c, 8)
#define MHLA_SUMS_256(c) MHLA_SUMS_128(c), MHLA_8_QUADS(c, 16), MHLA_8_QUADS(c, 24)
#define MHLA_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MHLA_REGISTERS_128 MHLA_REGISTERS_64 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MHLA_REGISTERS_256 MHLA_REGISTERS_128 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, " \
  "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
  "%122, %123, %124, %125, %126, %127"

// settle_sums(c): whatever was done to c by ordinary instructions is done before what follows.
// multiply_panel_by_rows(c, a, b, add): c (+)= A B over 16 columns of a panel and 16 rows of panels: 64 rows of A from
// `a` on, rows of B from `b` on.
// multiply_fragments_by_rows(c, a, b, add): the same, 16 columns of A as fragments of the four warps.
// multiply_transposed_by_rows(c, a, b, add): c (+)= A^T B over 16 rows: 64 columns of a panel from `a` on.
__device__ inline void settle_sums(WideSums<128>& c) { asm volatile("" : MHLA_SUMS_128(c)::"memory"); }
__device__ inline void settle_sums(WideSums<256>& c) { asm volatile("" : MHLA_SUMS_256(c)::"memory"); }
__device__ inline void multiply_panel_by_rows(WideSums<128>& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MHLA_REGISTERS_128 "}, %64, %65, add, 1, 1, 0, 1;\n}"
      : MHLA_SUMS_128(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_fragments_by_rows(WideSums<64>& c, const std::uint32_t (&a)[4], std::uint64_t b,
                                                  bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MHLA_REGISTERS_64 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}"
      : MHLA_SUMS_64(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_fragments_by_rows(WideSums<128>& c, const std::uint32_t (&a)[4], std::uint64_t b,
                                                  bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MHLA_REGISTERS_128 "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}"
      : MHLA_SUMS_128(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_fragments_by_rows(WideSums<256>& c, const std::uint32_t (&a)[4], std::uint64_t b,
                                                  bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %133, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MHLA_REGISTERS_256 "}, {%128, %129, %130, %131}, %132, add, 1, 1, 1;\n}"
      : MHLA_SUMS_256(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_transposed_by_rows(WideSums<128>& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MHLA_REGISTERS_128 "}, %64, %65, add, 1, 1, 1, 1;\n}"
      : MHLA_SUMS_128(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ inline void multiply_transposed_by_rows(WideSums<256>& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" MHLA_REGISTERS_256 "}, %128, %129, add, 1, 1, 1, 1;\n}"
      : MHLA_SUMS_256(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// x (+)= A [B 1] over 16 rows of a panel that beside_ones() described: 16 columns of A as fragments of the four warps.
__device__ inline void multiply_rows_and_ones(SumsAndRows& x, const std::uint32_t (&a)[4], std::uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %41, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 {" MHLA_REGISTERS_64 ", %32, %33, %34, %35}, {%36, %37, %38, %39}, %40, add, 1, 1, 1;\n}"
      : MHLA_SUMS_64(x.sums), "+f"(x.rows[0]), "+f"(x.rows[1]), "+f"(x.rows[2]), "+f"(x.rows[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
// c += A^T 1 over 16 rows: the sums of 64 columns of a panel from `a` on in column 0 of c (and in the seven others).
__device__ inline void add_column_sums(float (&c)[4], std::uint64_t a, std::uint64_t ones) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, add, 1, 1, 1, 0;\n}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "l"(a), "l"(ones));
}
// clang-format on

#undef MHLA_QUAD
#undef MHLA_8_QUADS
#undef MHLA_SUMS_64
#undef MHLA_SUMS_128
#undef MHLA_SUMS_256
#undef MHLA_REGISTERS_64
#undef MHLA_REGISTERS_128
#undef MHLA_REGISTERS_256

}  // namespace mhla::cuda
