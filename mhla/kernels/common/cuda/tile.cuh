// Shared memory of a product: operands filled from rows in global memory, sums staged as rows for what follows.
#pragma once

#include "mhla/kernels/common/cuda/product.cuh"

namespace mhla::cuda {

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

// Four elements of a row, zeros beyond its end. `vector`: rows begin at multiples of four elements.
template <class T>
__device__ inline Four<T> load_four(const T* row, int column, int columns, bool vector) {
  Four<T> raw{};
  if (vector && column + 4 <= columns) {
    raw = *reinterpret_cast<const Four<T>*>(row + column);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + j < columns) raw.x[j] = row[column + j];
    }
  }
  return raw;
}

template <class T>
__device__ inline void store_four(T* row, int column, int columns, bool vector, const float (&x)[4]) {
  if (vector && column + 4 <= columns) {
    *reinterpret_cast<Four<T>*>(row + column) = {narrow<T>(x[0]), narrow<T>(x[1]), narrow<T>(x[2]), narrow<T>(x[3])};
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column + j < columns) row[column + j] = narrow<T>(x[j]);
    }
  }
}

// Rows of an f32 matrix as a source of operands.
struct MatrixRows {
  using Element = float;
  const float* data;
  std::int64_t stride;
  int rows, columns;
  bool vector;

  __device__ Four<float> load(int row, int column) const {
    if (row >= rows) return {};
    return load_four(data + row * stride, column, columns, vector);
  }
  __device__ void finish(const Four<float>& raw, int /*row*/, int /*column*/, float (&x)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = raw.x[j];
  }
};

// A source gives four elements of a row as they lie in memory (load), then as operands (finish): zeros outside it.
// All loads of a thread are under way before the first is used. Both functions tell whether the values this thread
// moved are finite.

// Operand whose depth runs over the rows of the source: tile (k, x) = source (row + k, column + x).
template <class A, int kWidth, class Source>
__device__ inline bool fill_rows(typename A::Operand* tile, const Source& source, int row, int column) {
  constexpr int kAcross = kWidth / 4, kPieces = kDepth * kAcross / kThreads;
  Four<typename Source::Element> raw[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int index = p * kThreads + threadIdx.x;
    raw[p] = source.load(row + index / kAcross, column + index % kAcross * 4);
  }
  bool finite = true;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int index = p * kThreads + threadIdx.x, k = index / kAcross, x = index % kAcross * 4;
    float value[4];
    source.finish(raw[p], row + k, column + x, value);
#pragma unroll
    for (int j = 0; j < 4; ++j) finite = finite && isfinite(value[j]);
    *reinterpret_cast<Four<typename A::Operand>*>(tile + k * pitch(kWidth) + x) = {
        A::operand(value[0]), A::operand(value[1]), A::operand(value[2]), A::operand(value[3])};
  }
  return finite;
}

// Operand whose depth runs along the rows of the source: tile (k, x) = source (row + x, column + k). A warp reads eight
// elements of 16 rows: long enough pieces of memory, and no more than two lanes write to one bank.
template <class A, int kWidth, class Source>
__device__ inline bool fill_columns(typename A::Operand* tile, const Source& source, int row, int column) {
  constexpr int kPieces = kDepth / 4 * kWidth / kThreads;
  const auto place = [](int p, int& x, int& k) {
    const int index = p * kThreads + threadIdx.x;
    x = index / 2 % 16 + index / 128 * 16;
    k = (index % 2 + index / 32 % 4 * 2) * 4;
  };
  Four<typename Source::Element> raw[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    int x, k;
    place(p, x, k);
    raw[p] = source.load(row + x, column + k);
  }
  bool finite = true;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    int x, k;
    place(p, x, k);
    float value[4];
    source.finish(raw[p], row + x, column + k, value);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      finite = finite && isfinite(value[j]);
      tile[(k + j) * pitch(kWidth) + x] = A::operand(value[j]);
    }
  }
  return finite;
}

// Both operands of a product, and later in their place the sums as rows.
inline constexpr int kStagePitch = kColumns + 4;

template <class A, int kRows>
union alignas(16) TileMemory {
  struct {
    typename A::Operand a[operand_size(kRows)];
    typename A::Operand b[operand_size(kColumns)];
  } operands;
  float staged[kRows * kStagePitch];
};

template <class Sums>
__device__ inline void stage(Sums& sums, float* to) {
  sums.visit([&](int row, int column, float& sum) { to[row * kStagePitch + column] = sum; });
}

}  // namespace mhla::cuda
