// 16 bytes a thread where memory is aligned to them, else one value.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/swiglu/swiglu_job.h"

namespace mhla {
namespace {

using cuda::narrow;
using cuda::widen;

constexpr int kThreads = 256;

template <class T, int kWidth>
struct alignas(kWidth * sizeof(T)) Piece {
  T x[kWidth];
};

template <class T, int kWidth>
__device__ inline Piece<T, kWidth> load(const void* from, std::int64_t at) {
  return *reinterpret_cast<const Piece<T, kWidth>*>(static_cast<const T*>(from) + at);
}
template <class T, int kWidth>
__device__ inline void store(void* to, std::int64_t at, const Piece<T, kWidth>& piece) {
  *reinterpret_cast<Piece<T, kWidth>*>(static_cast<T*>(to) + at) = piece;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T, int kWidth, bool kBackward>
__device__ inline void work(const SwigluJob& p, std::int64_t at) {
  const Piece<T, kWidth> gate = load<T, kWidth>(p.gate, at), up = load<T, kWidth>(p.up, at);
  Piece<T, kWidth> first, second;  // out; dgate and dup
  Piece<T, kWidth> dout;
  if constexpr (kBackward) dout = load<T, kWidth>(p.dout, at);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const float g = widen(gate.x[i]), u = widen(up.x[i]), s = sigmoid(g);
    if constexpr (kBackward) {
      const float d = widen(dout.x[i]);
      first.x[i] = narrow<T>(d * u * (s * fmaf(g, 1.0f - s, 1.0f)));
      second.x[i] = narrow<T>(d * (g * s));
    } else {
      first.x[i] = narrow<T>(g * s * u);
    }
  }
  store<T, kWidth>(kBackward ? p.dgate : p.out, at, first);
  if constexpr (kBackward) store<T, kWidth>(p.dup, at, second);
}

template <class T, int kWidth, bool kBackward>
__global__ void __launch_bounds__(kThreads) swiglu_kernel(SwigluJob p) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (at + kWidth <= p.count) return work<T, kWidth, kBackward>(p, at);
  for (std::int64_t one = at; one < p.count; ++one) work<T, 1, kBackward>(p, one);
}

template <class T, bool kBackward>
void launch_as(const SwigluJob& job) {
  constexpr int kWidth = 16 / sizeof(T);
  const std::int64_t width = job.aligned ? kWidth : 1, each = kThreads * width;
  const auto blocks = static_cast<unsigned>((job.count + each - 1) / each);
  auto* kernel = job.aligned ? &swiglu_kernel<T, kWidth, kBackward> : &swiglu_kernel<T, 1, kBackward>;
  kernel<<<blocks, kThreads, 0, stream_of(job.stream)>>>(job);
  check_launch("swiglu_kernel");
}

template <bool kBackward>
void launch(const SwigluJob& job) {
  if (job.dtype == DType::kBF16) return launch_as<bf16, kBackward>(job);
  if (job.dtype == DType::kF16) return launch_as<f16, kBackward>(job);
  launch_as<float, kBackward>(job);
}

}  // namespace

void swiglu_cuda(const SwigluJob& job) { launch<false>(job); }
void swiglu_backward_cuda(const SwigluJob& job) { launch<true>(job); }

}  // namespace mhla
