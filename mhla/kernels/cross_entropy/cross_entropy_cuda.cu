// A block of threads for every row. It reads the row once for its largest logit and the sum of exponentials, each
// thread with a running pair (largest, sum), and a second time, from the L2 cache, for the gradient: a row of 32,000
// logits in bf16 has 64 KB, those of all blocks at work 17 to 34 MB.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/cross_entropy/cross_entropy_job.h"

namespace mhla {
namespace {

using cuda::narrow;
using cuda::widen;

constexpr int kThreads = 512, kWarps = kThreads / 32;

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Piece {
  T x[kWidth];
};

// exp(largest) sum: a part of a row's sum of exponentials.
struct Part {
  float largest = -INFINITY, sum = 0;
};

// -inf - -inf would be NaN: rows whose other parts are empty, or hold nothing but -inf.
__device__ inline float scaled(const Part& part, float largest) {
  return part.sum == 0 ? 0.0f : part.sum * __expf(part.largest - largest);
}

__device__ inline Part join(const Part& a, const Part& b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, scaled(a, largest) + scaled(b, largest)};
}

template <class T, int kWidth>
__device__ inline void add(const Piece<T, kWidth>& piece, Part& part) {
  float largest = part.largest;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, widen(piece.x[i]));  // skips NaN: the sum keeps it
  float sum = scaled(part, largest);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += widen(piece.x[i]) == -INFINITY ? 0.0f : __expf(widen(piece.x[i]) - largest);
  part = {largest, sum};
}

// The parts of all threads, in a fixed order; every thread has the result.
__device__ inline Part join_all(Part part) {
  __shared__ Part warps[kWarps];
#pragma unroll
  for (int other = 16; other > 0; other /= 2)
    part = join(part, {__shfl_xor_sync(~0u, part.largest, other), __shfl_xor_sync(~0u, part.sum, other)});
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = part;
  __syncthreads();
  part = warps[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) part = join(part, warps[warp]);
  return part;
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyJob p) {
  using Own = Piece<T, kWidth>;
  T* const row = static_cast<T*>(p.logits) + static_cast<std::int64_t>(blockIdx.x) * p.vocab;
  Own* const pieces = reinterpret_cast<Own*>(row);
  const std::int64_t target = p.targets[blockIdx.x], count = p.vocab / kWidth;
  const bool known = target != p.ignored, right = target >= 0 && target < p.vocab;
  if (!known) {
    if (threadIdx.x == 0) p.losses[blockIdx.x] = 0;
    if (!p.gradient) return;
    for (std::int64_t i = threadIdx.x; i < count; i += kThreads) pieces[i] = Own{};
    return;
  }
  Part part;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) add<T, kWidth>(pieces[i], part);
  part = join_all(part);
  const float total = part.largest + logf(part.sum);  // logsumexp
  if (threadIdx.x == 0) p.losses[blockIdx.x] = right ? total - widen(row[target]) : NAN;
  if (!p.gradient) return;
  __syncthreads();  // the target's logit has been read
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    Own piece = pieces[i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float share = __expf(widen(piece.x[j]) - total);
      piece.x[j] = narrow<T>(!right ? NAN : i * kWidth + j == target ? share - 1.0f : share);
    }
    pieces[i] = piece;
  }
}

template <class T>
void launch_as(const CrossEntropyJob& job) {
  constexpr int kWidth = 16 / sizeof(T);
  auto* kernel = job.aligned ? &cross_entropy_kernel<T, kWidth> : &cross_entropy_kernel<T, 1>;
  kernel<<<static_cast<unsigned>(job.rows), kThreads, 0, stream_of(job.stream)>>>(job);
  check_launch("cross_entropy_kernel");
}

}  // namespace

void cross_entropy_cuda(const CrossEntropyJob& job) {
  if (job.dtype == DType::kBF16) return launch_as<bf16>(job);
  if (job.dtype == DType::kF16) return launch_as<f16>(job);
  launch_as<float>(job);
}

}  // namespace mhla
