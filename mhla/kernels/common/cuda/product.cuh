// The product every phase is made of: a tile of kRows x kColumns f32 sums, kept in the registers of a block of kThreads
// threads, to which steps of at most kDepth products are added from two operands in shared memory. Four kinds of
// arithmetic share this interface: FullF32 for f32 inputs; Bf16 and Tf32 on tensor cores for bf16 and f16 inputs;
// SplitTf32 on tensor cores with nearly the accuracy of f32. Operands are of type A::Operand, made by A::operand, and
// lie as they were filled:
//   kByRows      [kDepth][width]  element (k, x) at k * pitch(width) + x
//   kByColumns   [width][kDepth]  element (k, x) at x * A::kPitch + k; FullF32 takes kByRows alone
// The pitches keep what a warp reads at once in different banks.
#pragma once

#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/common/cuda/launch.cuh"

namespace mhla::cuda {

inline constexpr int kDepth = 32;
inline constexpr int kColumns = 64;

enum class Filled { kByRows, kByColumns };

constexpr int pitch(int width) { return width + 8; }
constexpr int ceil_div(int a, int b) { return a / b + (a % b != 0); }

// Sums run in chains of 8, these are added up over a step, and the steps at last: short chains round less than a long
// one.
struct FullF32 {
  using Operand = float;
  static constexpr bool kTransposes = true;  // operands filled by columns are turned on the way
  static constexpr int kPitch = 0;
  __device__ static float operand(float x) { return x; }

  template <int kRows>
  class Sums {
   public:
    template <Filled, Filled>
    __device__ void add(const float* a, const float* b, int depth) {
      float step[kOwn][4] = {};
      a += row(), b += column();
      for (int begin = 0; begin < depth; begin += 8) {
        float part[kOwn][4] = {};
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
        add_to(step, part);
      }
      add_to(total_, step);
    }

    template <class F>
    __device__ void visit(const F& f) {
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) f(row() + r, column() + c, total_[r][c]);
      }
    }
    __device__ void multiply_by(const Sums& other) {  // element by element
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) total_[r][c] *= other.total_[r][c];
      }
    }

   private:
    static constexpr int kOwn = kRows / 8;  // rows of a thread, of four columns each
    __device__ static int row() { return threadIdx.x / 16 * kOwn; }
    __device__ static int column() { return threadIdx.x % 16 * 4; }
    __device__ static void add_to(float (&to)[kOwn][4], const float (&from)[kOwn][4]) {
#pragma unroll
      for (int r = 0; r < kOwn; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) to[r][c] += from[r][c];
      }
    }
    float total_[kOwn][4] = {};
  };
};

// What the kinds of tensor-core arithmetic share: a warp owns kDown x kAcross tiles of 16 x 8 sums, spread over its
// lanes as the instructions want them (intrinsics.cuh).
template <int kRows>
class FragmentSums {
 public:
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
  __device__ void multiply_by(const FragmentSums& other) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) total_[i][j][e] *= other.total_[i][j][e];
      }
    }
  }

 protected:
  static constexpr int kWarpsDown = kRows == 64 ? 2 : 1, kWarpsAcross = 4 / kWarpsDown;
  static constexpr int kDown = kRows / 16 / kWarpsDown, kAcross = kColumns / 8 / kWarpsAcross;
  __device__ static int first_row() { return threadIdx.x / 32 / kWarpsAcross * kDown * 16; }
  __device__ static int first_column() { return threadIdx.x / 32 % kWarpsAcross * kAcross * 8; }
  float total_[kDown][kAcross][4] = {};
};

// f32 operands with kProducts tensor-core products each: 1 of operands that were rounded to TF32, or 3 of operands that
// are split into a high and a low part of TF32 here (low times low is left out, below the rounding of f32).
template <int kRows, int kProducts>
class Tf32Sums : public FragmentSums<kRows> {
 public:
  static constexpr int kPitch = kDepth + 4;
  template <Filled kA, Filled kB>
  __device__ void add(const float* a, const float* b, int depth) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    constexpr bool kRowsA = kA == Filled::kByRows, kRowsB = kB == Filled::kByRows;
    constexpr int kDeepA = kRowsA ? pitch(kRows) : 1, kWideA = kRowsA ? 1 : kPitch;  // steps of k and x
    constexpr int kDeepB = kRowsB ? pitch(kColumns) : 1, kWideB = kRowsB ? 1 : kPitch;
    a += q * kDeepA + (this->first_row() + g) * kWideA, b += q * kDeepB + (this->first_column() + g) * kWideB;
    for (int begin = 0; begin < depth; begin += 8) {
      float x[kDown][4], y[kAcross][2];
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
        const float* const from = a + begin * kDeepA + 16 * i * kWideA;
        x[i][0] = from[0], x[i][1] = from[8 * kWideA];
        x[i][2] = from[4 * kDeepA], x[i][3] = from[4 * kDeepA + 8 * kWideA];
      }
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const float* const from = b + begin * kDeepB + 8 * j * kWideB;
        y[j][0] = from[0], y[j][1] = from[4 * kDeepB];
      }
      if constexpr (kProducts == 1) {
        multiply(x, y);
      } else {
        float x_low[kDown][4], y_low[kAcross][2];
        split(x, x_low), split(y, y_low);
        multiply(x_low, y);
        multiply(x, y_low);
        multiply(x, y);
      }
    }
  }

 private:
  static constexpr int kDown = FragmentSums<kRows>::kDown, kAcross = FragmentSums<kRows>::kAcross;
  template <int kTiles, int kSize>
  __device__ static void split(float (&x)[kTiles][kSize], float (&low)[kTiles][kSize]) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < kSize; ++e) {
        const float high = round_to_tf32(x[i][e]);
        low[i][e] = high == x[i][e] ? 0.0f : round_to_tf32(x[i][e] - high);  // infinity minus itself is none
        x[i][e] = high;
      }
    }
  }
  __device__ void multiply(const float (&x)[kDown][4], const float (&y)[kAcross][2]) {
#pragma unroll
    for (int i = 0; i < kDown; ++i) {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) multiply_tf32(this->total_[i][j], x[i], y[j]);
    }
  }
};

struct Tf32 {
  using Operand = float;
  static constexpr bool kTransposes = false;
  static constexpr int kPitch = Tf32Sums<16, 1>::kPitch;
  __device__ static float operand(float x) { return round_to_tf32(x); }
  template <int kRows>
  using Sums = Tf32Sums<kRows, 1>;
};

struct SplitTf32 {
  using Operand = float;
  static constexpr bool kTransposes = false;
  static constexpr int kPitch = Tf32Sums<16, 3>::kPitch;
  __device__ static float operand(float x) { return x; }
  template <int kRows>
  using Sums = Tf32Sums<kRows, 3>;
};

struct Bf16 {
  using Operand = bf16;
  static constexpr bool kTransposes = false;
  static constexpr int kPitch = kDepth + 8;
  __device__ static bf16 operand(float x) { return narrow<bf16>(x); }

  // A lane names row lane % 8 of 8 x 8 matrix lane / 8. Fragments want depth contiguous: operands filled by rows are
  // transposed on the way into registers. Matrices of A (k, row) in the order (0, 0), (0, 8), (8, 0), (8, 8); of B (k,
  // column) (0, 0), (8, 0), (0, 8), (8, 8), which are two tiles of 8 columns.
  template <int kRows>
  class Sums : public FragmentSums<kRows> {
   public:
    template <Filled kA, Filled kB>
    __device__ void add(const bf16* a, const bf16* b, int depth) {
      constexpr bool kRowsA = kA == Filled::kByRows, kRowsB = kB == Filled::kByRows;
      constexpr int kDeepA = kRowsA ? pitch(kRows) : 1, kWideA = kRowsA ? 1 : kPitch;
      constexpr int kDeepB = kRowsB ? pitch(kColumns) : 1, kWideB = kRowsB ? 1 : kPitch;
      const int lane = threadIdx.x % 32, inner = lane % 8, first = lane / 8 % 2 * 8, second = lane / 16 * 8;
      a += (second + (kRowsA ? inner : 0)) * kDeepA + (this->first_row() + first + (kRowsA ? 0 : inner)) * kWideA;
      b += (first + (kRowsB ? inner : 0)) * kDeepB + (this->first_column() + second + (kRowsB ? 0 : inner)) * kWideB;
      for (int begin = 0; begin < depth; begin += 16) {
        std::uint32_t x[kDown][4], y[kAcross / 2][4];
#pragma unroll
        for (int i = 0; i < kDown; ++i) load<kRowsA>(x[i], a + begin * kDeepA + 16 * i * kWideA);
#pragma unroll
        for (int j = 0; j < kAcross / 2; ++j) load<kRowsB>(y[j], b + begin * kDeepB + 16 * j * kWideB);
#pragma unroll
        for (int i = 0; i < kDown; ++i) {
#pragma unroll
          for (int j = 0; j < kAcross; ++j)
            multiply_add(this->total_[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
      }
    }

   private:
    static constexpr int kDown = FragmentSums<kRows>::kDown, kAcross = FragmentSums<kRows>::kAcross;
    template <bool kTransposed>
    __device__ static void load(std::uint32_t (&matrices)[4], const bf16* row) {
      if constexpr (kTransposed) {
        load_matrices_transposed(matrices, shared_address(row));
      } else {
        load_matrices(matrices, shared_address(row));
      }
    }
  };
};

// Elements of an operand of `width`, however it is filled.
template <class A>
constexpr int operand_size(int width) {
  const int by_rows = kDepth * pitch(width), by_columns = width * A::kPitch;
  return by_rows > by_columns ? by_rows : by_columns;
}

// The arithmetic of products with tokens, by their element type.
template <class T>
struct ArithmeticOf;
template <>
struct ArithmeticOf<float> {
  using type = FullF32;
};
template <>
struct ArithmeticOf<bf16> {
  using type = Bf16;
};
template <>
struct ArithmeticOf<f16> {  // its products do not fit f16
  using type = Tf32;
};
template <class T>
using Arithmetic = typename ArithmeticOf<T>::type;

// For a step of which some terms do not exist, keep(k, row), with operands filled by rows. A masked product multiplies
// them by 0, which an infinity or a NaN of b survives: such values are multiplied term by term where they are kept, and
// cleared. The step itself follows, with the bits that it has without them. All threads call.
template <int kRows, class Sums, class Operand, class Keep>
__device__ void add_not_finite(Sums& sums, const Operand* a, Operand* b, int depth, const Keep& keep) {
#pragma unroll 1
  for (int k = 0; k < depth; ++k) {
    sums.visit([&](int row, int column, float& sum) {
      const float y = widen(b[k * pitch(kColumns) + column]);
      if (!isfinite(y) && keep(k, row)) sum = fmaf(widen(a[k * pitch(kRows) + row]), y, sum);
    });
  }
  __syncthreads();
  for (int index = threadIdx.x; index < kDepth * kColumns; index += kThreads) {
    Operand& y = b[index / kColumns * pitch(kColumns) + index % kColumns];
    if (!isfinite(widen(y))) y = Operand{};
  }
  __syncthreads();
}

}  // namespace mhla::cuda
