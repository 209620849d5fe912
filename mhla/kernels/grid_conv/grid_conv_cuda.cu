// A thread holds four channels. Forward, it works on a square of kConvStrip by kConvStrip tokens: every row of v that
// its outputs touch is read once for the strip, and the taps stay in registers. The gradient of the taps is a sum over
// all tokens: 32 threads side by side hold 128 channels, eight of them in turn take every eighth strip of a part, and
// the parts are added up in order by a second kernel.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/grid_conv/grid_conv_job.h"

namespace mhla {
namespace {

using cuda::narrow;
using cuda::widen;

constexpr int kThreads = 256, kT = kConvStrip;

struct Four {
  float x[4] = {0, 0, 0, 0};
};

template <class T>
struct alignas(4 * sizeof(T)) Packed {
  T x[4];
};

template <class T>
__device__ inline Four load(const T* from) {
  const Packed<T> packed = *reinterpret_cast<const Packed<T>*>(from);
  Four four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.x[i] = widen(packed.x[i]);
  return four;
}

template <class T>
__device__ inline void store(T* to, const Four& four) {
  Packed<T> packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) packed.x[i] = narrow<T>(four.x[i]);
  *reinterpret_cast<Packed<T>*>(to) = packed;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// A row of tokens from `column - K / 2` on, zeros outside of the grid.
template <int K, class T>
__device__ inline void load_window(const T* row, bool inside, std::int64_t stride, int column, int columns,
                                   Four (&window)[kT + K - 1]) {
#pragma unroll
  for (int i = 0; i < kT + K - 1; ++i) {
    const int at = column + i - K / 2;
    window[i] = inside && at >= 0 && at < columns ? load(row + at * stride) : Four{};
  }
}

// What is beside the convolution joins it, and a strip of tokens is written from `at` on.
template <class T>
__device__ inline void finish(const GridConvJob& p, std::int64_t at, int column, Four (&sums)[kT]) {
  Four base[kT], gate[kT];
#pragma unroll
  for (int t = 0; t < kT; ++t) {
    const std::int64_t own = at + t * static_cast<std::int64_t>(p.channels);
    if (p.base != nullptr && column + t < p.columns) base[t] = load(static_cast<const T*>(p.base) + own);
    if (p.gate != nullptr && column + t < p.columns) gate[t] = load(static_cast<const T*>(p.gate) + own);
  }
#pragma unroll
  for (int t = 0; t < kT; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float g = p.gate == nullptr ? 1.0f : gate[t].x[i] * sigmoid(gate[t].x[i]);
      sums[t].x[i] = fmaf(base[t].x[i], g, sums[t].x[i]);
    }
    if (column + t < p.columns) store(static_cast<T*>(p.out) + at + t * static_cast<std::int64_t>(p.channels), sums[t]);
  }
}

// kFlip: with the taps turned round, which gives the gradient of v from dout (in v's place).
template <int K, class T, bool kFlip>
__global__ void __launch_bounds__(kThreads, K == 3 ? 2 : 1) grid_conv_kernel(GridConvJob p) {
  const int quads = p.channels / 4, strips = (p.columns + kT - 1) / kT, bands = (p.rows + kT - 1) / kT;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int channel = static_cast<int>(thread % quads) * 4;
  std::int64_t rest = thread / quads;
  const int column = static_cast<int>(rest % strips) * kT;
  rest /= strips;
  const int first = static_cast<int>(rest % bands) * kT;
  const std::int64_t image = rest / bands;
  if (image >= p.images) return;
  Four taps[K * K], bias;
#pragma unroll
  for (int tap = 0; tap < K * K; ++tap)
    taps[tap] = load(p.weight + (kFlip ? K * K - 1 - tap : tap) * static_cast<std::int64_t>(p.channels) + channel);
  if (p.bias != nullptr) bias = load(p.bias + channel);
  const T* v = static_cast<const T*>(p.v) + image * p.image_stride + channel;
#pragma unroll 1
  for (int row = first; row < p.rows && row < first + kT; ++row) {
    Four sums[kT];
#pragma unroll
    for (int t = 0; t < kT; ++t) sums[t] = bias;
#pragma unroll
    for (int ky = 0; ky < K; ++ky) {
      const int from = row + ky - K / 2;
      Four window[kT + K - 1];
      load_window<K>(v + static_cast<std::int64_t>(from) * p.columns * p.token_stride, from >= 0 && from < p.rows,
                     p.token_stride, column, p.columns, window);
#pragma unroll
      for (int t = 0; t < kT; ++t) {
#pragma unroll
        for (int kx = 0; kx < K; ++kx) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[t].x[i] = fmaf(taps[ky * K + kx].x[i], window[t + kx].x[i], sums[t].x[i]);
        }
      }
    }
    const std::int64_t at =
        ((image * p.rows + row) * p.columns + column) * static_cast<std::int64_t>(p.channels) + channel;
    finish<T>(p, at, column, sums);
  }
}

// Gradients of base and gate.
template <class T>
__global__ void __launch_bounds__(kThreads) grid_conv_gate_kernel(GridConvJob p, std::int64_t pieces) {
  const std::int64_t piece = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (piece >= pieces) return;
  const std::int64_t at = 4 * piece;
  const Four d = load(static_cast<const T*>(p.dout) + at), base = load(static_cast<const T*>(p.base) + at);
  const Four gate = load(static_cast<const T*>(p.gate) + at);
  Four dbase, dgate;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float g = gate.x[i], s = sigmoid(g);
    dbase.x[i] = d.x[i] * (g * s);
    dgate.x[i] = d.x[i] * base.x[i] * (s * fmaf(g, 1.0f - s, 1.0f));
  }
  store(static_cast<T*>(p.dbase) + at, dbase);
  store(static_cast<T*>(p.dgate) + at, dgate);
}

template <int K, class T>
__global__ void __launch_bounds__(kThreads) grid_conv_taps_kernel(GridConvJob p, std::int64_t strips) {
  __shared__ float shared[kThreads / 32][32 * 4];
  const int lane = static_cast<int>(threadIdx.x) % 32, turn = static_cast<int>(threadIdx.x) / 32;
  const int channel = (static_cast<int>(blockIdx.x) * 32 + lane) * 4;
  const int across = (p.columns + kT - 1) / kT;
  const std::int64_t each = (strips + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * each;
  const std::int64_t end = begin + each < strips ? begin + each : strips;
  float sums[4][K * K + 1] = {};
  if (channel < p.channels) {
#pragma unroll 1
    for (std::int64_t strip = begin + turn; strip < end; strip += kThreads / 32) {
      const int column = static_cast<int>(strip % across) * kT;
      const int row = static_cast<int>(strip / across % p.rows);
      const std::int64_t image = strip / across / p.rows;
      const T* dout = static_cast<const T*>(p.dout) +
                      ((image * p.rows + row) * p.columns + column) * static_cast<std::int64_t>(p.channels) + channel;
      const T* v = static_cast<const T*>(p.v) + image * p.image_stride + channel;
      Four d[kT];
#pragma unroll
      for (int t = 0; t < kT; ++t) {
        if (column + t < p.columns) d[t] = load(dout + t * static_cast<std::int64_t>(p.channels));
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i][K * K] += d[t].x[i];
      }
#pragma unroll
      for (int ky = 0; ky < K; ++ky) {
        const int from = row + ky - K / 2;
        Four window[kT + K - 1];
        load_window<K>(v + static_cast<std::int64_t>(from) * p.columns * p.token_stride, from >= 0 && from < p.rows,
                       p.token_stride, column, p.columns, window);
#pragma unroll
        for (int kx = 0; kx < K; ++kx) {
#pragma unroll
          for (int t = 0; t < kT; ++t) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
              sums[i][ky * K + kx] = fmaf(d[t].x[i], window[t + kx].x[i], sums[i][ky * K + kx]);
          }
        }
      }
    }
  }
  float* parts = p.parts + static_cast<std::int64_t>(blockIdx.y) * (K * K + 1) * p.channels;
#pragma unroll
  for (int tap = 0; tap < K * K + 1; ++tap) {
#pragma unroll
    for (int i = 0; i < 4; ++i) shared[turn][lane * 4 + i] = sums[i][tap];
    __syncthreads();
    const int own = static_cast<int>(blockIdx.x) * 128 + static_cast<int>(threadIdx.x);
    if (threadIdx.x < 128 && own < p.channels) {
      float sum = 0;
      for (int from = 0; from < kThreads / 32; ++from) sum += shared[from][threadIdx.x];
      parts[tap * static_cast<std::int64_t>(p.channels) + own] = sum;
    }
    __syncthreads();
  }
}

// A block of threads adds up the parts of a tap for 32 channels, each warp every eighth.
__global__ void __launch_bounds__(kThreads) grid_conv_sums_kernel(GridConvJob p, int parts) {
  __shared__ float shared[kThreads / 32][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int channel = static_cast<int>(blockIdx.x) * 32 + lane, tap = static_cast<int>(blockIdx.y);
  const int taps = static_cast<int>(gridDim.y) - 1;
  float sum = 0;
  if (channel < p.channels) {
    for (int part = warp; part < parts; part += kThreads / 32)
      sum += p.parts[(static_cast<std::int64_t>(part) * (taps + 1) + tap) * p.channels + channel];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || channel >= p.channels) return;
  for (int from = 1; from < kThreads / 32; ++from) sum += shared[from][lane];
  if (tap == taps) {
    p.dbias[channel] = sum;
  } else {
    p.dweight[static_cast<std::int64_t>(tap) * p.channels + channel] = sum;
  }
}

template <class F>
void with_dtype(DType dtype, const F& f) {
  if (dtype == DType::kBF16) return f(bf16{});
  if (dtype == DType::kF16) return f(f16{});
  f(float{});
}

unsigned blocks_of(std::int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

template <bool kFlip>
void convolve(const GridConvJob& job) {
  const std::int64_t squares =
      job.images * ((job.rows + kT - 1) / kT) * ((job.columns + kT - 1) / kT) * (job.channels / 4);
  with_dtype(job.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* kernel = job.kernel == 3 ? &grid_conv_kernel<3, T, kFlip> : &grid_conv_kernel<5, T, kFlip>;
    kernel<<<blocks_of(squares), kThreads, 0, stream_of(job.stream)>>>(job);
  });
  check_launch("grid_conv_kernel");
}

}  // namespace

void grid_conv_cuda(const GridConvJob& job) { convolve<false>(job); }

void grid_conv_backward_cuda(const GridConvJob& job) {
  const std::int64_t strips = conv_strips(job.images, job.rows, job.columns), parts = conv_parts(strips);
  if (strips > 0) {
    GridConvJob back = job;  // dout takes the place of v
    back.v = job.dout, back.token_stride = job.channels;
    back.image_stride = static_cast<std::int64_t>(job.rows) * job.columns * job.channels;
    back.base = back.gate = back.bias = nullptr;
    convolve<true>(back);
    const std::int64_t pieces = job.images * job.rows * job.columns * (job.channels / 4);
    with_dtype(job.dtype, [&](auto zero) {
      using T = decltype(zero);
      if (job.gate != nullptr)
        grid_conv_gate_kernel<T><<<blocks_of(pieces), kThreads, 0, stream_of(job.stream)>>>(job, pieces);
      const dim3 grid(static_cast<unsigned>(job.channels + 127) / 128, static_cast<unsigned>(parts));
      auto* kernel = job.kernel == 3 ? &grid_conv_taps_kernel<3, T> : &grid_conv_taps_kernel<5, T>;
      kernel<<<grid, kThreads, 0, stream_of(job.stream)>>>(job, strips);
    });
    check_launch("grid_conv_taps_kernel");
  }
  const dim3 grid(static_cast<unsigned>(job.channels + 31) / 32, static_cast<unsigned>(job.kernel * job.kernel + 1));
  grid_conv_sums_kernel<<<grid, kThreads, 0, stream_of(job.stream)>>>(job, static_cast<int>(parts));
  check_launch("grid_conv_sums_kernel");
}

}  // namespace mhla
