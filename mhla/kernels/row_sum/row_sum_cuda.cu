// Two passes. In the first a block of threads has a part of the rows: threads side by side hold 16 bytes of a row each,
// and as many rows are read at a time as the block has room for. In the second the parts of 32 columns are added up.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/row_sum/row_sum_job.h"

namespace mhla {
namespace {

using cuda::widen;

constexpr int kThreads = 512, kSumThreads = 256;

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Piece {
  T x[kWidth];
};

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) row_parts_kernel(RowSumJob p) {
  __shared__ float shared[kThreads * kWidth];
  const int pieces = static_cast<int>(p.columns / kWidth);
  const int across = pieces < kThreads ? pieces : kThreads, lanes = kThreads / across;
  const int lane = static_cast<int>(threadIdx.x) / across, own = static_cast<int>(threadIdx.x) % across;
  const int piece = static_cast<int>(blockIdx.y) * kThreads + own;
  const std::int64_t each = (p.rows + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each;
  const std::int64_t end = begin + each < p.rows ? begin + each : p.rows;
  float sums[kWidth] = {};
  if (lane < lanes && piece < pieces) {
    const T* const x = static_cast<const T*>(p.x) + static_cast<std::int64_t>(piece) * kWidth;
#pragma unroll 4
    for (std::int64_t row = begin + lane; row < end; row += lanes) {
      const auto values = *reinterpret_cast<const Piece<T, kWidth>*>(x + row * p.columns);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sums[i] += widen(values.x[i]);
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

template <class T>
void launch_parts(const RowSumJob& job, int parts) {
  constexpr int kWidth = 16 / sizeof(T);
  const std::int64_t pieces = job.columns / (job.aligned ? kWidth : 1);
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>((pieces + kThreads - 1) / kThreads));
  auto* kernel = job.aligned ? &row_parts_kernel<T, kWidth> : &row_parts_kernel<T, 1>;
  kernel<<<grid, kThreads, 0, stream_of(job.stream)>>>(job);
  check_launch("row_parts_kernel");
}

}  // namespace

void row_sum_cuda(const RowSumJob& job) {
  const int parts = static_cast<int>(row_sum_parts(job.rows));
  if (job.dtype == DType::kBF16) launch_parts<bf16>(job, parts);
  if (job.dtype == DType::kF16) launch_parts<f16>(job, parts);
  if (job.dtype == DType::kF32) launch_parts<float>(job, parts);
  row_total_kernel<<<static_cast<unsigned>((job.columns + 31) / 32), kSumThreads, 0, stream_of(job.stream)>>>(job,
                                                                                                              parts);
  check_launch("row_total_kernel");
}

}  // namespace mhla
