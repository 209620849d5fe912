// Matrices in the registers of a warp or a warpgroup: ldmatrix, stmatrix, mma of bf16, wgmma.
#pragma once

#include <cstdint>

namespace emulator {

// kMatrices of 8 x 8 values of 16 bits; lane l gives the address of row l % 8 of matrix l / 8.
void load_matrices(std::uint32_t* r, std::uint32_t row, int matrices, bool transposed);
void store_matrices(const std::uint32_t* r, std::uint32_t row, int matrices);

// c += a b, 16 x 8 sums: `words` of a (2 a step of 8 products) and half as many of b.
void multiply_warp(float* c, const std::uint32_t* a, const std::uint32_t* b, int words);

// wgmma m64 n`columns` k16, as this thread issues it.
struct GroupProduct {
  float* c;                          // columns / 2 sums of this thread
  int columns;                       // 8 to 256
  const std::uint32_t* a_words;      // four words of A in registers, or null: a_matrix
  std::uint64_t a_matrix, b_matrix;  // descriptors
  bool a_transposed, b_transposed;   // rows in memory are those of k: the last two operands of the instruction
  bool add;
};
void issue_product(const GroupProduct& product);
void commit_products();
void wait_products(int pending);

}  // namespace emulator
