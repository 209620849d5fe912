// The product every phase is made of: a tile of kRows x kColumns f32 sums, kept in the registers of a block of kThreads
// threads, to which steps of at most kDepth products are added from two operands in shared memory.
//   A [kDepth][kRows], B [kDepth][kColumns]: element (k, x) at k * pitch(width) + x
// Operands are f32 in either arithmetic: FullF32 multiplies with fmaf, Tf32 on tensor cores (16-bit inputs). The pitch
// puts rows k and k + 1 eight banks apart, so that the fragments of a warp touch all 32 banks once.
#pragma once

#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/common/cuda/launch.cuh"

namespace mhla::cuda {

inline constexpr int kDepth = 32;
inline constexpr int kColumns = 64;

constexpr int pitch(int width) { return width + 8; }
constexpr int operand_size(int width) { return kDepth * pitch(width); }
constexpr int ceil_div(int a, int b) { return a / b + (a % b != 0); }

// f32 as it is. Sums run in chains of one step, then the steps are added up: two short chains round less than a long
// one.
struct FullF32 {
  __device__ static float operand(float x) { return x; }

  template <int kRows>
  class Sums {
   public:
    __device__ void add(const float* a, const float* b, int depth) {
      float part[kOwn][4] = {};
      a += row(), b += column();
      for (int begin = 0; begin < depth; begin += 8) {
#pragma unroll
        for (int k = begin; k < begin + 8; ++k) {
          float x[kOwn];
          if constexpr (kOwn % 4 == 0) {
#pragma unroll
            for (int r = 0; r < kOwn; r += 4) {
              const float4 four = *reinterpret_cast<const float4*>(a + k * pitch(kRows) + r);
              x[r] = four.x, x[r + 1] = four.y, x[r + 2] = four.z, x[r + 3] = four.w;
            }
          } else {
#pragma unroll
            for (int r = 0; r < kOwn; ++r) x[r] = a[k * pitch(kRows) + r];
          }
          const float4 y = *reinterpret_cast<const float4*>(b + k * pitch(kColumns));
#pragma unroll
          for (int r = 0; r < kOwn; ++r) {
            part[r][0] = fmaf(x[r], y.x, part[r][0]);
            part[r][1] = fmaf(x[r], y.y, part[r][1]);
            part[r][2] = fmaf(x[r], y.z, part[r][2]);
            part[r][3] = fmaf(x[r], y.w, part[r][3]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) total_[r][c] += part[r][c];
      }
    }

    template <class F>
    __device__ void visit(const F& f) {
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) f(row() + r, column() + c, total_[r][c]);
      }
    }

   private:
    static constexpr int kOwn = kRows / 8;  // rows of a thread, of four columns each
    __device__ static int row() { return threadIdx.x / 16 * kOwn; }
    __device__ static int column() { return threadIdx.x % 16 * 4; }
    float total_[kOwn][4] = {};
  };
};

struct Tf32 {
  __device__ static float operand(float x) { return round_to_tf32(x); }

  template <int kRows>
  class Sums {
   public:
    __device__ void add(const float* a, const float* b, int depth) {
      const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
      a += q * pitch(kRows) + first_row() + g, b += q * pitch(kColumns) + first_column() + g;
      for (int begin = 0; begin < depth; begin += 8) {
        float x[kDown][4], y[kAcross][2];
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
          const float* const from = a + begin * pitch(kRows) + 16 * i;
          x[i][0] = from[0], x[i][1] = from[8];
          x[i][2] = from[4 * pitch(kRows)], x[i][3] = from[4 * pitch(kRows) + 8];
        }
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
          const float* const from = b + begin * pitch(kColumns) + 8 * j;
          y[j][0] = from[0], y[j][1] = from[4 * pitch(kColumns)];
        }
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
#pragma unroll
          for (int j = 0; j < kAcross; ++j) multiply_tf32(total_[i][j], x[i], y[j]);
        }
      }
    }

    template <class F>
    __device__ void visit(const F& f) {
      const int lane = threadIdx.x % 32, row = first_row() + lane / 4, column = first_column() + 2 * (lane % 4);
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kAcross; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) f(row + 16 * i + e / 2 * 8, column + 8 * j + e % 2, total_[i][j][e]);
        }
      }
    }

   private:
    static constexpr int kWarpsDown = kRows == 64 ? 2 : 1, kWarpsAcross = 4 / kWarpsDown;
    static constexpr int kDown = kRows / 16 / kWarpsDown, kAcross = kColumns / 8 / kWarpsAcross;  // tiles of a warp
    __device__ static int first_row() { return threadIdx.x / 32 / kWarpsAcross * kDown * 16; }
    __device__ static int first_column() { return threadIdx.x / 32 % kWarpsAcross * kAcross * 8; }
    float total_[kDown][kAcross][4] = {};
  };
};

template <class T>
struct ArithmeticOf {
  using type = Tf32;
};
template <>
struct ArithmeticOf<float> {
  using type = FullF32;
};
template <class T>
using Arithmetic = typename ArithmeticOf<T>::type;

// The same step term by term, for terms of which some do not exist: keep(k, row). A masked product would multiply
// them by 0, which an infinity or a NaN survives. Slow, and used only where there is one.
template <int kRows, class Sums, class Keep>
__device__ void add_where(Sums& sums, const float* a, const float* b, int depth, const Keep& keep) {
  sums.visit([&](int row, int column, float& sum) {
    float part = 0;
    for (int k = 0; k < depth; ++k) {
      if (keep(k, row)) part = fmaf(a[k * pitch(kRows) + row], b[k * pitch(kColumns) + column], part);
    }
    sum += part;
  });
}

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
__device__ inline bool fill_rows(float* tile, const Source& source, int row, int column) {
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
    *reinterpret_cast<float4*>(tile + k * pitch(kWidth) + x) = {A::operand(value[0]), A::operand(value[1]),
                                                                A::operand(value[2]), A::operand(value[3])};
  }
  return finite;
}

// Operand whose depth runs along the rows of the source: tile (k, x) = source (row + x, column + k). A warp reads eight
// elements of 16 rows: long enough pieces of memory, and no more than two lanes write to one bank.
template <class A, int kWidth, class Source>
__device__ inline bool fill_columns(float* tile, const Source& source, int row, int column) {
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

// The sums as rows in shared memory, for what follows a product: [kRows][stage_pitch].
inline constexpr int kStagePitch = kColumns + 4;
constexpr int stage_size(int rows) { return rows * kStagePitch; }

template <class Sums>
__device__ inline void stage(Sums& sums, float* to) {
  sums.visit([&](int row, int column, float& sum) { to[row * kStagePitch + column] = sum; });
}

}  // namespace mhla::cuda
