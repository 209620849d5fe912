// The third phase inside a block of threads: rows of tokens times the summary of their block, and in the causal form
// the products inside their chunk.
#pragma once

#include "mhla/kernels/common/cuda/tokens.cuh"

namespace mhla::cuda {

inline constexpr int kOthers = kColumns;  // tokens that rows meet at once inside a chunk

// Shared memory: that of a product, and the products of rows and other tokens as a third operand.
template <class A, int kRows, bool kCausal>
struct ReadOutMemory {
  TileMemory<A, kRows> tile;
  alignas(16) typename A::Operand scores[kCausal ? kOthers * pitch(kRows) : 1];  // [o][row]
};

// sums += rows . S, or rows . S^T: columns [column, column + kColumns) of it.
template <bool kTransposed, class A, int kRows, class Sums, class Rows, class Summary, bool kCausal>
__device__ void add_summary(Sums& sums, ReadOutMemory<A, kRows, kCausal>& memory, const Rows& rows, int row,
                            const Summary& summary, int column) {
  for (int k = 0; k < rows.columns; k += kDepth) {
    fill_by_columns<A, kRows>(memory.tile.operands.a, rows, row, k);
    if constexpr (kTransposed) {
      fill_by_columns<A, kColumns>(memory.tile.operands.b, summary, column, k);
    } else {
      fill_by_rows<A, kColumns>(memory.tile.operands.b, summary, k, column);
    }
    __syncthreads();
    sums.template add<Filled::kByColumns, kTransposed ? Filled::kByColumns : Filled::kByRows>(
        memory.tile.operands.a, memory.tile.operands.b, min(kDepth, rows.columns - k));
    __syncthreads();
  }
}

// products += rows . others, tokens [row, row + kRows) and [other, other + kOthers) of one block.
template <class A, int kRows, class Sums, class Rows>
__device__ void add_token_products(Sums& products, ReadOutMemory<A, kRows, true>& memory, const Rows& rows, int row,
                                   const Rows& others, int other) {
  for (int k = 0; k < rows.columns; k += kDepth) {
    fill_by_columns<A, kRows>(memory.tile.operands.a, rows, row, k);
    fill_by_columns<A, kColumns>(memory.tile.operands.b, others, other, k);
    __syncthreads();
    products.template add<Filled::kByColumns, Filled::kByColumns>(memory.tile.operands.a, memory.tile.operands.b,
                                                                  min(kDepth, rows.columns - k));
    __syncthreads();
  }
}

// What the tokens of a chunk give each other: other tokens o up to a row, or from it on.
struct Inside {
  bool after;
  float coefficient;
  const float* maybe_bias;  // of the chunk
};

// sums += coefficient * sum_o (row . y_o + bias) w_o, columns [column, column + kColumns) of w.
template <class A, int kRows, class Sums, class Rows>
__device__ void add_inside(Sums& sums, ReadOutMemory<A, kRows, true>& memory, const Rows& rows, int row, const Rows& y,
                           const Rows& w, int column, const Inside& inside) {
  const int size = static_cast<int>(rows.at.size);
  const auto kept = [&](int o, int r) { return inside.after ? o >= r : o <= r; };
  const int begin = inside.after ? row / kOthers * kOthers : 0;
  const int end = inside.after ? size : min(size, row + kRows);
  for (int other = begin; other < end; other += kOthers) {
    typename A::template Sums<kRows> products;
    add_token_products(products, memory, rows, row, y, other);
    products.visit([&](int r, int o, float& product) {
      float score = 0;
      if (other + o < size && row + r < size && kept(other + o, row + r)) {
        const float bias = inside.maybe_bias ? inside.maybe_bias[inside.after ? other + o : row + r] : 0.0f;
        score = inside.coefficient * (product + bias);
      }
      memory.scores[o * pitch(kRows) + r] = A::operand(score);
    });
    const bool all_kept = inside.after ? other >= row + kRows : other + kOthers <= row;
    for (int k = 0; k < kOthers && other + k < end; k += kDepth) {
      const auto* const scores = memory.scores + k * pitch(kRows);
      const int depth = min(kDepth, end - other - k);
      const bool finite = __syncthreads_and(fill_by_rows<A, kColumns>(memory.tile.operands.b, w, other + k, column));
      if (!finite && !all_kept)
        add_not_finite<kRows>(sums, scores, memory.tile.operands.b, depth,
                              [&](int at, int r) { return kept(other + k + at, row + r); });
      sums.template add<Filled::kByRows, Filled::kByRows>(scores, memory.tile.operands.b, depth);
      __syncthreads();
    }
  }
}

}  // namespace mhla::cuda
