// A row lies in the registers of a group of lanes, a warp or a part of it: lane l of g holds columns 4 l to 4 l + 3 of
// every 4 g. Short rows so share a warp, and with it the steps of its sums. What a dtype costs is a branch that all
// threads take alike; memory is the limit.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/norm/norm_job.h"

namespace mhla {
namespace {

using cuda::narrow;
using cuda::widen;

// How a row lies: lanes of it, and pieces of four columns that each of them holds. kAligned: pieces are read and
// written whole. kFull: rows may be centered or have a bias. kGated: they may have a gate.
template <int kLanes_, int kPieces_, bool kAligned_, bool kFull_, bool kGated_>
struct Shape {
  static constexpr int kLanes = kLanes_, kPieces = kPieces_, kRows = 32 / kLanes_;  // rows of a warp
  static constexpr bool kAligned = kAligned_, kFull = kFull_, kGated = kGated_;
};

template <class S>
using Row = float[S::kPieces][4];

// f(piece, column) for the pieces of this lane.
template <class S, class F>
__device__ inline void each_piece(const F& f) {
  const int lane = static_cast<int>(threadIdx.x) % S::kLanes;
#pragma unroll
  for (int piece = 0; piece < S::kPieces; ++piece) f(piece, (piece * S::kLanes + lane) * 4);
}

// f(piece, i, column) for the columns of this lane, those behind the last one too.
template <class S, class F>
__device__ inline void each(const F& f) {
  each_piece<S>([&](int piece, int column) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f(piece, i, column + i);
  });
}

// Sum over the lanes of a row, the same bits in every one.
template <class S>
__device__ inline float row_sum(float x) {
#pragma unroll
  for (int away = S::kLanes / 2; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
  return x;
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

template <class S, class T>
__device__ inline void load_as(const char* data, int X, Row<S>& to) {
  const T* from = reinterpret_cast<const T*>(data);
  each_piece<S>([&](int piece, int column) {
    if constexpr (S::kAligned) {
      if (column >= X) return;
      const Four<T> four = *reinterpret_cast<const Four<T>*>(from + column);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[piece][i] = widen(four.x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < X) to[piece][i] = widen(from[column + i]);
      }
    }
  });
}

__device__ inline char* row_of(const NormRows& rows, std::int64_t row) {
  return static_cast<char*>(rows.data) + row * rows.stride * (rows.dtype == DType::kF32 ? 4 : 2);
}

// Columns behind the last one are zeros, and so is a row that is not there.
template <class S>
__device__ inline void load(const NormRows& from, std::int64_t row, bool there, int X, Row<S>& to) {
  each<S>([&](int piece, int i, int) { to[piece][i] = 0.0f; });
  if (!there) return;
  const char* data = row_of(from, row);
  if (from.dtype == DType::kBF16) return load_as<S, bf16>(data, X, to);
  if (from.dtype == DType::kF16) return load_as<S, f16>(data, X, to);
  load_as<S, float>(data, X, to);
}

template <class S, class T>
__device__ inline void store_as(char* data, int X, const Row<S>& from) {
  T* to = reinterpret_cast<T*>(data);
  each_piece<S>([&](int piece, int column) {
    if constexpr (S::kAligned) {
      if (column >= X) return;
      Four<T> four;
#pragma unroll
      for (int i = 0; i < 4; ++i) four.x[i] = narrow<T>(from[piece][i]);
      *reinterpret_cast<Four<T>*>(to + column) = four;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i < X) to[column + i] = narrow<T>(from[piece][i]);
      }
    }
  });
}

template <class S>
__device__ inline void store(const NormRows& to, std::int64_t row, bool there, int X, const Row<S>& from) {
  if (!there) return;
  char* data = row_of(to, row);
  if (to.dtype == DType::kBF16) return store_as<S, bf16>(data, X, from);
  if (to.dtype == DType::kF16) return store_as<S, f16>(data, X, from);
  store_as<S, float>(data, X, from);
}

// f32 values of a column each, zeros behind the last one; null: all `otherwise`.
template <class S>
__device__ inline void load_columns(const float* from, int X, float otherwise, Row<S>& to) {
  each<S>([&](int piece, int i, int column) {
    to[piece][i] = column >= X ? 0.0f : from == nullptr ? otherwise : from[column];
  });
}

// x becomes x^; returns 1 / sqrt(...).
template <class S>
__device__ inline float normalize(const NormJob& p, Row<S>& x) {
  const float share = 1.0f / static_cast<float>(p.X);
  if (S::kFull && p.centered) {
    float sum = 0;
    each<S>([&](int piece, int i, int) { sum += x[piece][i]; });
    const float mean = row_sum<S>(sum) * share;
    each<S>([&](int piece, int i, int column) { x[piece][i] = column < p.X ? x[piece][i] - mean : 0.0f; });
  }
  float squares = 0;
  each<S>([&](int piece, int i, int) { squares = fmaf(x[piece][i], x[piece][i], squares); });
  const float factor = __frsqrt_rn(row_sum<S>(squares) * share + p.eps);
  each<S>([&](int piece, int i, int) { x[piece][i] *= factor; });
  return factor;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// f(row, there) for the rows of this lane, all lanes of a warp as often.
template <class S, class F>
__device__ inline void each_row(const NormJob& p, const F& f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kNormWarps * S::kRows;
  const int own = static_cast<int>(threadIdx.x) % 32 / S::kLanes;
#pragma unroll 1
  for (std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / 32) * S::kRows;
       first < p.rows; first += step)
    f(first + own, first + own < p.rows);
}

template <class S>
__global__ void __launch_bounds__(kNormWarps * 32) norm_kernel(NormJob p) {
  Row<S> weight, bias = {};
  load<S>(p.weight, 0, true, p.X, weight);
  if constexpr (S::kFull) load_columns<S>(p.bias, p.X, 0.0f, bias);
  each_row<S>(p, [&](std::int64_t row, bool there) {
    Row<S> x;
    load<S>(p.x, row, there, p.X, x);
    if (!S::kGated && p.add.data != nullptr) {
      Row<S> add;
      load<S>(p.add, row, there, p.X, add);
      each<S>([&](int piece, int i, int) { x[piece][i] += add[piece][i]; });
      store<S>(p.sum, row, there, p.X, x);
    }
    normalize<S>(p, x);
    each<S>([&](int piece, int i, int) { x[piece][i] = fmaf(x[piece][i], weight[piece][i], bias[piece][i]); });
    if (S::kGated && p.gate.data != nullptr) {
      Row<S> gate;
      load<S>(p.gate, row, there, p.X, gate);
      each<S>([&](int piece, int i, int) { x[piece][i] *= gate[piece][i] * sigmoid(gate[piece][i]); });
    }
    store<S>(p.y, row, there, p.X, x);
  });
}

template <class S>
__global__ void __launch_bounds__(kNormWarps * 32) norm_gradient_kernel(NormJob p) {
  extern __shared__ float shared[];  // [kNormWarps * kRows][X]
  const float share = 1.0f / static_cast<float>(p.X);
  Row<S> weight, dweight = {}, dbias = {};
  load<S>(p.weight, 0, true, p.X, weight);
  each_row<S>(p, [&](std::int64_t row, bool there) {
    Row<S> x, dy;
    load<S>(p.x, row, there, p.X, x);
    load<S>(p.y, row, there, p.X, dy);
    const float factor = normalize<S>(p, x);
    if (S::kGated && p.gate.data != nullptr) {
      Row<S> gate;
      load<S>(p.gate, row, there, p.X, gate);
      each<S>([&](int piece, int i, int column) {
        const float g = gate[piece][i], s = sigmoid(g), d = dy[piece][i];
        const float b = !S::kFull || p.bias == nullptr || column >= p.X ? 0.0f : p.bias[column];
        gate[piece][i] = d * fmaf(x[piece][i], weight[piece][i], b) * (s * fmaf(g, 1.0f - s, 1.0f));
        dy[piece][i] = d * (g * s);
      });
      store<S>(p.dgate, row, there, p.X, gate);
    }
    float along = 0, level = 0;  // sums of dx^ x^ and dx^, dx^ = dy weight
    each<S>([&](int piece, int i, int) {
      dweight[piece][i] = fmaf(dy[piece][i], x[piece][i], dweight[piece][i]);
      if constexpr (S::kFull) dbias[piece][i] += dy[piece][i];
      dy[piece][i] *= weight[piece][i];
      along = fmaf(dy[piece][i], x[piece][i], along);
      if constexpr (S::kFull) level += dy[piece][i];
    });
    along = row_sum<S>(along) * share;
    if constexpr (S::kFull) level = p.centered ? row_sum<S>(level) * share : 0.0f;
    each<S>([&](int piece, int i, int) { dy[piece][i] = factor * (fmaf(-along, x[piece][i], dy[piece][i]) - level); });
    if (!S::kGated && p.sum.data != nullptr) {
      load<S>(p.sum, row, there, p.X, x);
      each<S>([&](int piece, int i, int) { dy[piece][i] += x[piece][i]; });
    }
    store<S>(p.dx, row, there, p.X, dy);
    if (!S::kGated && p.dadd.data != nullptr) store<S>(p.dadd, row, there, p.X, dy);
  });
  const int group = static_cast<int>(threadIdx.x) / S::kLanes;
  const auto sum_groups = [&](const Row<S>& sums, float* to) {
    each<S>([&](int piece, int i, int column) {
      if (column < p.X) shared[group * p.X + column] = sums[piece][i];
    });
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < p.X; column += static_cast<int>(blockDim.x)) {
      float sum = 0;
      for (int from = 0; from < kNormWarps * S::kRows; ++from) sum += shared[from * p.X + column];
      to[column] = sum;
    }
    __syncthreads();
  };
  float* parts = p.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * p.X;
  if (p.dweight != nullptr) sum_groups(dweight, parts);
  if (p.dbias != nullptr) sum_groups(dbias, parts + p.X);
}

// A block of threads sums 32 columns of dweight or dbias over the parts, each warp every eighth.
__global__ void __launch_bounds__(kNormWarps * 32) norm_sums_kernel(NormJob p, int parts) {
  __shared__ float shared[kNormWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
  float* to = blockIdx.y == 0 ? p.dweight : p.dbias;
  if (to == nullptr) return;
  float sum = 0;
  if (column < p.X) {
    for (int part = warp; part < parts; part += kNormWarps) {
      sum += p.parts[(static_cast<std::int64_t>(part) * 2 + blockIdx.y) * p.X + column];
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= p.X) return;
  for (int from = 1; from < kNormWarps; ++from) sum += shared[from][lane];
  to[column] = sum;
}

// f(shape) with the least that holds a row.
template <class F>
void with_shape(const NormJob& job, const F& f) {
  const bool full = job.centered || job.bias != nullptr || job.dbias != nullptr, gated = job.gate.data != nullptr;
  for (const NormRows* rows :
       {&job.x, &job.weight, &job.gate, &job.y, &job.dx, &job.dgate, &job.add, &job.sum, &job.dadd}) {
    if (rows->data == nullptr || rows->pieces) continue;
    return gated ? f(Shape<32, 8, false, true, true>{}) : f(Shape<32, 8, false, true, false>{});
  }
  const auto of = [&](auto lanes, auto pieces) {
    constexpr int kLanes = lanes(), kPieces = pieces();
    if (full && gated) return f(Shape<kLanes, kPieces, true, true, true>{});
    if (full) return f(Shape<kLanes, kPieces, true, true, false>{});
    if (gated) return f(Shape<kLanes, kPieces, true, false, true>{});
    f(Shape<kLanes, kPieces, true, false, false>{});
  };
  constexpr std::integral_constant<int, 2> kTwo;
  constexpr std::integral_constant<int, 3> kThree;
  constexpr std::integral_constant<int, 4> kFour;
  constexpr std::integral_constant<int, 6> kSix;
  constexpr std::integral_constant<int, 8> kEight;
  constexpr std::integral_constant<int, 16> kHalfWarp;
  constexpr std::integral_constant<int, 32> kWarp;
  if (job.X <= 64) return of(kEight, kTwo);
  if (job.X <= 128) return of(kHalfWarp, kTwo);
  if (job.X <= 192) return of(kHalfWarp, kThree);
  if (job.X <= 256) return of(kWarp, kTwo);
  if (job.X <= 512) return of(kWarp, kFour);
  if (job.X <= 768) return of(kWarp, kSix);
  of(kWarp, kEight);
}

// Rows are independent: more blocks of threads than run at a time would only read the weights again.
constexpr std::int64_t kForwardBlocks = 2048;

}  // namespace

void norm_cuda(const NormJob& job) {
  with_shape(job, [&](auto shape) {
    using S = decltype(shape);
    const std::int64_t rows = kNormWarps * S::kRows, blocks = std::min((job.rows + rows - 1) / rows, kForwardBlocks);
    norm_kernel<S><<<static_cast<unsigned>(blocks), kNormWarps * 32, 0, stream_of(job.stream)>>>(job);
    check_launch("norm_kernel");
  });
}

void norm_backward_cuda(const NormJob& job) {
  const auto parts = static_cast<unsigned>(norm_parts(job.rows));
  if (parts > 0) {
    with_shape(job, [&](auto shape) {
      using S = decltype(shape);
      const std::size_t bytes = static_cast<std::size_t>(kNormWarps * S::kRows * job.X) * sizeof(float);
      norm_gradient_kernel<S><<<parts, kNormWarps * 32, bytes, stream_of(job.stream)>>>(job);
      check_launch("norm_gradient_kernel");
    });
  }
  const dim3 grid(static_cast<unsigned>(job.X + 31) / 32, 2);
  norm_sums_kernel<<<grid, kNormWarps * 32, 0, stream_of(job.stream)>>>(job, static_cast<int>(parts));
  check_launch("norm_sums_kernel");
}

}  // namespace mhla
