// Shared memory of a product: operands filled from rows in global memory, sums staged as rows for what follows.
#pragma once

#include <type_traits>

#include "mhla/kernels/common/cuda/product.cuh"

namespace mhla::cuda {

// 16 bytes of a row: what one thread moves at once.
template <class T>
struct alignas(16) Piece {
  static constexpr int kSize = 16 / sizeof(T);
  T x[kSize];
};

// A piece of a row, zeros beyond its end. `vector`: rows begin at multiples of 16 bytes.
template <class T>
__device__ inline Piece<T> load_piece(const T* row, int column, int columns, bool vector) {
  Piece<T> raw{};
  if (vector && column + Piece<T>::kSize <= columns) {
    raw = *reinterpret_cast<const Piece<T>*>(row + column);
  } else {
#pragma unroll
    for (int j = 0; j < Piece<T>::kSize; ++j) {
      if (column + j < columns) raw.x[j] = row[column + j];
    }
  }
  return raw;
}

template <class T>
__device__ inline void store_piece(T* row, int column, int columns, bool vector, const float (&x)[Piece<T>::kSize]) {
  Piece<T> rounded;
#pragma unroll
  for (int j = 0; j < Piece<T>::kSize; ++j) rounded.x[j] = narrow<T>(x[j]);
  if (vector && column + Piece<T>::kSize <= columns) {
    *reinterpret_cast<Piece<T>*>(row + column) = rounded;
  } else {
#pragma unroll
    for (int j = 0; j < Piece<T>::kSize; ++j) {
      if (column + j < columns) row[column + j] = rounded.x[j];
    }
  }
}

// A source of operands gives pieces of its rows as they lie in memory (load), then as numbers (finish): zeros outside
// its rows and columns, but where a feature map makes them something finite: then the other operand is zero there.
// `verbatim`: numbers are what lies in memory.

// Rows of an f32 matrix.
struct MatrixRows {
  using Element = float;
  const float* data;
  std::int64_t stride;
  int rows, columns;
  bool vector;

  __device__ Piece<float> load(int row, int column) const {
    if (row >= rows) return {};
    return load_piece(data + row * stride, column, columns, vector);
  }
  [[nodiscard]] __device__ bool verbatim() const { return true; }
  __device__ void finish(const Piece<float>& raw, int /*row*/, int /*column*/, float (&x)[4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = raw.x[j];
  }
};

// Moves pieces p of a thread from the source to tile[to(p)] and on, `step` elements apart; at(p) tells the row and
// column of the source, (-1, -1) where there is nothing to move. All loads of a thread are under way before the first
// is used. Tells whether the values this thread moved are finite.
struct PiecePlace {
  int row, column;  // of the source, relative
  int to;           // in the tile
  bool moves;
};
template <class A, int kPieces, int kStep, class Source, class At>
__device__ inline bool move_pieces(typename A::Operand* tile, const Source& source, int row, int column, const At& at) {
  using T = typename Source::Element;
  using Operand = typename A::Operand;
  constexpr int kSize = Piece<T>::kSize;
  Piece<T> raw[kPieces];
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const PiecePlace place = at(p);
    if (place.moves) raw[p] = source.load(row + place.row, column + place.column);
  }
  bool finite = true;
  if constexpr (std::is_same_v<T, Operand> && !std::is_same_v<T, float> && kStep == 1) {
    if (source.verbatim()) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const PiecePlace place = at(p);
        if (!place.moves) continue;
        *reinterpret_cast<Piece<T>*>(tile + place.to) = raw[p];
#pragma unroll
        for (int j = 0; j < kSize; ++j) finite = finite && isfinite(widen(raw[p].x[j]));
      }
      return finite;
    }
  }
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const PiecePlace place = at(p);
    if (!place.moves) continue;
    float value[kSize];
    source.finish(raw[p], row + place.row, column + place.column, value);
#pragma unroll
    for (int j = 0; j < kSize; ++j) finite = finite && isfinite(value[j]);
    if constexpr (kStep == 1) {
      constexpr int kAtOnce = 16 / sizeof(Operand) < kSize ? 16 / sizeof(Operand) : kSize;
      struct alignas(kAtOnce * sizeof(Operand)) Few {
        Operand x[kAtOnce];
      };
#pragma unroll
      for (int j = 0; j < kSize; j += kAtOnce) {
        Few few;
#pragma unroll
        for (int e = 0; e < kAtOnce; ++e) few.x[e] = A::operand(value[j + e]);
        *reinterpret_cast<Few*>(tile + place.to + j) = few;
      }
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) tile[place.to + j * kStep] = A::operand(value[j]);
    }
  }
  return finite;
}

// Operand (k, x) = source (row + k, column + x).
template <class A, int kWidth, class Source>
__device__ inline bool fill_by_rows(typename A::Operand* tile, const Source& source, int row, int column) {
  constexpr int kSize = Piece<typename Source::Element>::kSize, kAcross = kWidth / kSize, kAll = kDepth * kAcross;
  return move_pieces<A, ceil_div(kAll, kThreads), 1>(tile, source, row, column, [](int p) {
    const int index = p * kThreads + threadIdx.x, k = index / kAcross, x = index % kAcross * kSize;
    return PiecePlace{k, x, k * pitch(kWidth) + x, kAll % kThreads == 0 || index < kAll};
  });
}

// Operand (k, x) = source (row + x, column + k). Where the arithmetic wants rows of depth, a warp reads eight elements
// of 16 rows: long enough pieces of memory, and no more than two lanes write to one bank.
template <class A, int kWidth, class Source>
__device__ inline bool fill_by_columns(typename A::Operand* tile, const Source& source, int row, int column) {
  constexpr int kSize = Piece<typename Source::Element>::kSize, kDeep = kDepth / kSize, kAll = kDeep * kWidth;
  if constexpr (A::kTransposes) {
    static_assert(kSize == 4 && kAll % kThreads == 0);
    return move_pieces<A, kAll / kThreads, pitch(kWidth)>(tile, source, row, column, [](int p) {
      const int index = p * kThreads + threadIdx.x;
      const int x = index / 2 % 16 + index / 128 * 16, k = (index % 2 + index / 32 % 4 * 2) * 4;
      return PiecePlace{x, k, k * pitch(kWidth) + x, true};
    });
  } else {
    return move_pieces<A, ceil_div(kAll, kThreads), 1>(tile, source, row, column, [](int p) {
      const int index = p * kThreads + threadIdx.x, x = index / kDeep, k = index % kDeep * kSize;
      return PiecePlace{x, k, x * A::kPitch + k, kAll % kThreads == 0 || index < kAll};
    });
  }
}

// Both operands of a product, and later in their place the sums as rows.
inline constexpr int kStagePitch = kColumns + 4;

template <class A, int kRows>
union alignas(16) TileMemory {
  struct {
    alignas(16) typename A::Operand a[operand_size<A>(kRows)];
    alignas(16) typename A::Operand b[operand_size<A>(kColumns)];
  } operands;
  float staged[kRows * kStagePitch];
};

template <class Sums>
__device__ inline void stage(Sums& sums, float* to) {
  sums.visit([&](int row, int column, float& sum) { to[row * kStagePitch + column] = sum; });
}

// Calls f(row, column, values) for pieces of T of the staged tile.
template <class T, int kRows, class F>
__device__ inline void for_staged(const float* staged, const F& f) {
  constexpr int kSize = Piece<T>::kSize, kAcross = kColumns / kSize;
  for (int index = threadIdx.x; index < kRows * kAcross; index += kThreads) {
    const int row = index / kAcross, column = index % kAcross * kSize;
    float x[kSize];
#pragma unroll
    for (int j = 0; j < kSize; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(staged + row * kStagePitch + column + j);
      x[j] = four.x, x[j + 1] = four.y, x[j + 2] = four.z, x[j + 3] = four.w;
    }
    f(row, column, x);
  }
}

}  // namespace mhla::cuda
