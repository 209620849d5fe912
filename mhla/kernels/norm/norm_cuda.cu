// A warp per row, the row in its registers: lane l holds columns 4 l to 4 l + 3 of every 128. What a dtype costs is a
// branch that all threads take alike; memory is the limit.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/norm/norm_job.h"

namespace mhla {
namespace {

using cuda::narrow;
using cuda::warp_sum;
using cuda::widen;

template <int kPieces>
using Row = float[kPieces][4];

// f(piece, i, column) for the columns of this lane.
template <int kPieces, class F>
__device__ inline void each(int X, const F& f) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = piece * 128 + threadIdx.x % 32 * 4 + i;
      if (column < X) f(piece, i, column);
    }
  }
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

template <class T, int kPieces>
__device__ inline void load_as(const NormRows& from, std::int64_t row, int X, Row<kPieces>& to) {
  const T* data = static_cast<const T*>(from.data) + row * from.stride;
  if (from.pieces) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = piece * 128 + threadIdx.x % 32 * 4;
      if (column >= X) break;
      const Four<T> four = *reinterpret_cast<const Four<T>*>(data + column);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[piece][i] = widen(four.x[i]);
    }
  } else {
    each<kPieces>(X, [&](int piece, int i, int column) { to[piece][i] = widen(data[column]); });
  }
}

// Columns behind the last one are zeros.
template <int kPieces>
__device__ inline void load(const NormRows& from, std::int64_t row, int X, Row<kPieces>& to) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[piece][i] = 0.0f;
  }
  if (from.dtype == DType::kBF16) return load_as<bf16, kPieces>(from, row, X, to);
  if (from.dtype == DType::kF16) return load_as<f16, kPieces>(from, row, X, to);
  load_as<float, kPieces>(from, row, X, to);
}

template <class T, int kPieces>
__device__ inline void store_as(const NormRows& to, std::int64_t row, int X, const Row<kPieces>& from) {
  T* data = static_cast<T*>(to.data) + row * to.stride;
  if (to.pieces) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = piece * 128 + threadIdx.x % 32 * 4;
      if (column >= X) break;
      Four<T> four;
#pragma unroll
      for (int i = 0; i < 4; ++i) four.x[i] = narrow<T>(from[piece][i]);
      *reinterpret_cast<Four<T>*>(data + column) = four;
    }
  } else {
    each<kPieces>(X, [&](int piece, int i, int column) { data[column] = narrow<T>(from[piece][i]); });
  }
}

template <int kPieces>
__device__ inline void store(const NormRows& to, std::int64_t row, int X, const Row<kPieces>& from) {
  if (to.dtype == DType::kBF16) return store_as<bf16, kPieces>(to, row, X, from);
  if (to.dtype == DType::kF16) return store_as<f16, kPieces>(to, row, X, from);
  store_as<float, kPieces>(to, row, X, from);
}

// f32 values of a column each, zeros behind the last one; null: all `otherwise`.
template <int kPieces>
__device__ inline void load_columns(const float* from, int X, float otherwise, Row<kPieces>& to) {
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[piece][i] = 0.0f;
  }
  each<kPieces>(X, [&](int piece, int i, int column) { to[piece][i] = from == nullptr ? otherwise : from[column]; });
}

// x becomes x^; returns 1 / sqrt(...).
template <int kPieces>
__device__ inline float normalize(const NormJob& p, Row<kPieces>& x) {
  const float share = 1.0f / static_cast<float>(p.X);
  if (p.centered) {
    float sum = 0;
    each<kPieces>(p.X, [&](int piece, int i, int) { sum += x[piece][i]; });
    const float mean = warp_sum(sum) * share;
    each<kPieces>(p.X, [&](int piece, int i, int) { x[piece][i] -= mean; });
  }
  float squares = 0;
  each<kPieces>(p.X, [&](int piece, int i, int) { squares = fmaf(x[piece][i], x[piece][i], squares); });
  const float factor = __frsqrt_rn(warp_sum(squares) * share + p.eps);
  each<kPieces>(p.X, [&](int piece, int i, int) { x[piece][i] *= factor; });
  return factor;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <int kPieces>
__global__ void __launch_bounds__(kNormWarps * 32) norm_kernel(NormJob p) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / 32;
  if (row >= p.rows) return;
  Row<kPieces> x, weight, bias;
  load<kPieces>(p.x, row, p.X, x);
  load_columns<kPieces>(p.weight, p.X, 1.0f, weight);
  load_columns<kPieces>(p.bias, p.X, 0.0f, bias);
  normalize<kPieces>(p, x);
  each<kPieces>(p.X, [&](int piece, int i, int) { x[piece][i] = fmaf(x[piece][i], weight[piece][i], bias[piece][i]); });
  if (p.gate.data != nullptr) {
    Row<kPieces> gate;
    load<kPieces>(p.gate, row, p.X, gate);
    each<kPieces>(p.X, [&](int piece, int i, int) { x[piece][i] *= gate[piece][i] * sigmoid(gate[piece][i]); });
  }
  store<kPieces>(p.y, row, p.X, x);
}

template <int kPieces>
__global__ void __launch_bounds__(kNormWarps * 32) norm_gradient_kernel(NormJob p) {
  extern __shared__ float shared[];  // [kNormWarps][X]
  const int warp = threadIdx.x / 32;
  const float share = 1.0f / static_cast<float>(p.X);
  Row<kPieces> weight, dweight = {}, dbias = {};
  load_columns<kPieces>(p.weight, p.X, 1.0f, weight);
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kNormWarps + warp; row < p.rows;
       row += static_cast<std::int64_t>(gridDim.x) * kNormWarps) {
    Row<kPieces> x, dy;
    load<kPieces>(p.x, row, p.X, x);
    load<kPieces>(p.y, row, p.X, dy);
    const float factor = normalize<kPieces>(p, x);
    if (p.gate.data != nullptr) {
      Row<kPieces> gate;
      load<kPieces>(p.gate, row, p.X, gate);
      each<kPieces>(p.X, [&](int piece, int i, int column) {
        const float g = gate[piece][i], s = sigmoid(g), d = dy[piece][i];
        const float y = fmaf(x[piece][i], weight[piece][i], p.bias == nullptr ? 0.0f : p.bias[column]);
        gate[piece][i] = d * y * (s * fmaf(g, 1.0f - s, 1.0f));
        dy[piece][i] = d * (g * s);
      });
      store<kPieces>(p.dgate, row, p.X, gate);
    }
    float along = 0, level = 0;  // sums of dx^ x^ and dx^, dx^ = dy weight
    each<kPieces>(p.X, [&](int piece, int i, int) {
      dweight[piece][i] = fmaf(dy[piece][i], x[piece][i], dweight[piece][i]);
      dbias[piece][i] += dy[piece][i];
      dy[piece][i] *= weight[piece][i];
      along = fmaf(dy[piece][i], x[piece][i], along);
      level += dy[piece][i];
    });
    along = warp_sum(along) * share;
    level = p.centered ? warp_sum(level) * share : 0.0f;
    each<kPieces>(
        p.X, [&](int piece, int i, int) { dy[piece][i] = factor * (fmaf(-along, x[piece][i], dy[piece][i]) - level); });
    store<kPieces>(p.dx, row, p.X, dy);
  }
  const auto sum_warps = [&](const Row<kPieces>& sums, float* to) {
    each<kPieces>(p.X, [&](int piece, int i, int column) { shared[warp * p.X + column] = sums[piece][i]; });
    __syncthreads();
    for (int column = threadIdx.x; column < p.X; column += blockDim.x) {
      float sum = 0;
      for (int from = 0; from < kNormWarps; ++from) sum += shared[from * p.X + column];
      to[column] = sum;
    }
    __syncthreads();
  };
  float* parts = p.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * p.X;
  if (p.dweight != nullptr) sum_warps(dweight, parts);
  if (p.dbias != nullptr) sum_warps(dbias, parts + p.X);
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

// f(pieces) with as many as a row needs, as a constant.
template <class F>
void with_pieces(int X, const F& f) {
  if (X <= 128) return f(std::integral_constant<int, 1>{});
  if (X <= 256) return f(std::integral_constant<int, 2>{});
  if (X <= 512) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 8>{});
}

}  // namespace

void norm_cuda(const NormJob& job) {
  const std::int64_t blocks = (job.rows + kNormWarps - 1) / kNormWarps;
  if (blocks >= std::int64_t{1} << 31) fail("norm: ", job.rows, " rows, expected fewer than 2^34");
  with_pieces(job.X, [&](auto pieces) {
    norm_kernel<pieces()><<<static_cast<unsigned>(blocks), kNormWarps * 32, 0, stream_of(job.stream)>>>(job);
    check_launch("norm_kernel");
  });
}

void norm_backward_cuda(const NormJob& job) {
  const auto parts = static_cast<unsigned>(norm_parts(job.rows));
  if (parts > 0) {
    with_pieces(job.X, [&](auto pieces) {
      const std::size_t bytes = static_cast<std::size_t>(kNormWarps * job.X) * sizeof(float);
      norm_gradient_kernel<pieces()><<<parts, kNormWarps * 32, bytes, stream_of(job.stream)>>>(job);
      check_launch("norm_gradient_kernel");
    });
  }
  const dim3 grid(static_cast<unsigned>(job.X + 31) / 32, 2);
  norm_sums_kernel<<<grid, kNormWarps * 32, 0, stream_of(job.stream)>>>(job, static_cast<int>(parts));
  check_launch("norm_sums_kernel");
}

}  // namespace mhla
