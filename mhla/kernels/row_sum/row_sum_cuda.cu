// Two passes. In the first a block of threads has a part of the rows: threads side by side hold 16 bytes of a row each,
// and as many rows are read at a time as the block has room for. In the second the parts of 32 columns are added up.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/row_sum/row_sum_job.h"

namespace mhla {
namespace {

using cuda::narrow;
using cuda::widen;

constexpr int kThreads = 512, kSumThreads = 256;

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Piece {
  T x[kWidth];
};

// What the rows are: as they come, or dout gelu'(pre).
enum class Rows { kSum, kTanhGelu, kErfGelu };

// The derivative of x P(x), P the normal distribution; or of x s, s = 1 / (1 + exp(-2 u)), u = a (x + b x^3): GELU with
// tanh(u) = 2 s - 1.
template <Rows kRows>
__device__ inline float gelu_slope(float x) {
  if constexpr (kRows == Rows::kErfGelu) {
    const float near = fmaxf(-13.0f, fminf(13.0f, x));  // infinity times zero is NaN
    return fmaf(near * 0.3989422804f, __expf(-0.5f * near * near), normcdff(x));
  }
  constexpr float a = 0.7978845608f, b = 0.044715f;
  const float square = x * x, s = __fdividef(1.0f, 1.0f + __expf(-2.0f * a * x * fmaf(b, square, 1.0f)));
  return s * fmaf(2.0f * a * x * (1.0f - s), fmaf(3.0f * b, square, 1.0f), 1.0f);
}

// Of a GELU the rows are x gelu'(pre), which are written on the way; their sum is that of what was written. Rows are
// read kAtOnce at a time before any is written: dpre could be anywhere, so the compiler would wait for every store.
template <class T, int kWidth, Rows kRows>
__global__ void __launch_bounds__(kThreads, 2) row_parts_kernel(RowSumJob p) {
  using Values = Piece<T, kWidth>;
  constexpr int kAtOnce = 4;
  constexpr bool kGelu = kRows != Rows::kSum;
  __shared__ float shared[kThreads * kWidth];
  const int pieces = static_cast<int>(p.columns / kWidth);
  const int across = pieces < kThreads ? pieces : kThreads, lanes = kThreads / across;
  const int lane = static_cast<int>(threadIdx.x) / across, own = static_cast<int>(threadIdx.x) % across;
  const int piece = static_cast<int>(blockIdx.y) * kThreads + own;
  const std::int64_t each = (p.rows + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each;
  const std::int64_t end = begin + each < p.rows ? begin + each : p.rows;
  float sums[kWidth] = {};
  const auto add = [&](Values values, [[maybe_unused]] const Values& pre, [[maybe_unused]] std::int64_t at) {
    if constexpr (kGelu) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values.x[i] = narrow<T>(widen(values.x[i]) * gelu_slope<kRows>(widen(pre.x[i])));
      *reinterpret_cast<Values*>(static_cast<T*>(p.dpre) + at) = values;
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += widen(values.x[i]);
  };
  const auto load = [](const void* from, std::int64_t at) {
    return *reinterpret_cast<const Values*>(static_cast<const T*>(from) + at);
  };
  if (lane < lanes && piece < pieces) {
    const std::int64_t first = static_cast<std::int64_t>(piece) * kWidth;
    std::int64_t row = begin + lane;
#pragma unroll 1
    for (; row + (kAtOnce - 1) * lanes < end; row += kAtOnce * lanes) {
      Values x[kAtOnce], pre[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int64_t at = first + (row + i * lanes) * p.columns;
        x[i] = load(p.x, at);
        if constexpr (kGelu) pre[i] = load(p.pre, at);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) add(x[i], pre[i], first + (row + i * lanes) * p.columns);
    }
    for (; row < end; row += lanes) {
      const std::int64_t at = first + row * p.columns;
      Values pre = {};
      if constexpr (kGelu) pre = load(p.pre, at);
      add(load(p.x, at), pre, at);
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) shared[threadIdx.x * kWidth + i] = sums[i];
  __syncthreads();
  if (lane != 0 || piece >= pieces) return;
  for (int other = 1; other < lanes; ++other) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += shared[(other * across + own) * kWidth + i];
  }
  float* const to = p.parts + blockIdx.x * p.columns + static_cast<std::int64_t>(piece) * kWidth;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = sums[i];
}

// A warp takes every eighth part.
__global__ void __launch_bounds__(kSumThreads) row_total_kernel(RowSumJob p, int parts) {
  constexpr int kWarps = kSumThreads / 32;
  __shared__ float shared[kWarps][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (column < p.columns) {
#pragma unroll 4
    for (int part = warp; part < parts; part += kWarps) sum += p.parts[part * p.columns + column];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= p.columns) return;
  for (int other = 1; other < kWarps; ++other) sum += shared[other][lane];
  p.sum[column] = sum;
}

template <class T, Rows kRows>
void launch_parts(const RowSumJob& job, int parts) {
  constexpr int kWidth = 16 / sizeof(T);
  const std::int64_t pieces = job.columns / (job.aligned ? kWidth : 1);
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>((pieces + kThreads - 1) / kThreads));
  auto* kernel = job.aligned ? &row_parts_kernel<T, kWidth, kRows> : &row_parts_kernel<T, 1, kRows>;
  kernel<<<grid, kThreads, 0, stream_of(job.stream)>>>(job);
  check_launch("row_parts_kernel");
}

template <class T>
void launch_as(const RowSumJob& job, int parts) {
  if (job.pre == nullptr) return launch_parts<T, Rows::kSum>(job, parts);
  job.gelu == Gelu::kErf ? launch_parts<T, Rows::kErfGelu>(job, parts) : launch_parts<T, Rows::kTanhGelu>(job, parts);
}

}  // namespace

void row_sum_cuda(const RowSumJob& job) {
  const int parts = static_cast<int>(row_sum_parts(job.rows));
  if (job.dtype == DType::kBF16) launch_as<bf16>(job, parts);
  if (job.dtype == DType::kF16) launch_as<f16>(job, parts);
  if (job.dtype == DType::kF32) launch_as<float>(job, parts);
  row_total_kernel<<<static_cast<unsigned>((job.columns + 31) / 32), kSumThreads, 0, stream_of(job.stream)>>>(job,
                                                                                                              parts);
  check_launch("row_total_kernel");
}

}  // namespace mhla
