// A lane holds one word of channels (words.cuh), a warp 128 bytes of a token. A warp walks down the rows of a strip of
// kT columns with the K rows that its outputs touch in registers, and the row after them on its way: memory sees each
// row of v once, the columns that two strips share come from the cache, since the warps of a block walk side by side.
// The backward pass walks the same way over dout, whose window at token x is all that dv, the taps and the gate need:
//   dv[x] += weight[k] d,  dweight[k] += v[x] d    with d = dout[x - k], k counted from the middle tap
// Sums over tokens stay in registers to the end of a block; the parts are added up in order by a second kernel.
// Forward, a walk begins by calling all its tokens into the cache, which is more than registers hold; backward that
// took longer.
#include <algorithm>

#include "mhla/core/cuda_check.h"
#include "mhla/kernels/grid_conv/grid_conv_job.h"
#include "mhla/kernels/grid_conv/words.cuh"

namespace mhla {
namespace {

using namespace words;

constexpr int kT = kConvStrip, kThreads = 32 * kConvWarps;

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

struct Walk {
  std::int64_t image;
  int first, end, column;  // rows, and the first of kT columns
};

// Where a lane stands in a token, the same in all of them.
template <class T>
struct Lane {
  int words, word;  // of a token; its own
  __device__ explicit Lane(const GridConvJob& p)
      : words(p.channels / kWord<T>), word(static_cast<int>(blockIdx.x * 32 + threadIdx.x % 32)) {}
  __device__ bool inside() const { return word < words; }

  __device__ Numbers<T> numbers(const float* channels) const {
    Numbers<T> own;
#pragma unroll
    for (int i = 0; i < kWord<T>; ++i) own.x[i] = channels[word * kWord<T> + i];
    return own;
  }
  __device__ Tokens tokens_of_v(const GridConvJob& p, std::int64_t image) const {
    return {static_cast<const Word*>(p.v) + image * (p.image_stride / kWord<T>)+word,
            static_cast<int>(p.token_stride) / kWord<T>, p.rows, p.columns};
  }

  // All other arrays have contiguous tokens. An image of one, and where a strip of a row begins in every one of them.
  __device__ Tokens tokens(const GridConvJob& p, const void* data, std::int64_t image) const {
    return {static_cast<const Word*>(data) + image * p.rows * p.columns * words + word, words, p.rows, p.columns};
  }
  __device__ std::int64_t strip(const GridConvJob& p, const Walk& walk, int row) const {
    return ((walk.image * p.rows + row) * p.columns + walk.column) * words + word;
  }
  __device__ void load(const GridConvJob& p, const void* data, std::int64_t strip, int column, Word (&to)[kT]) const {
    const Word* from = static_cast<const Word*>(data) + strip;
#pragma unroll
    for (int t = 0; t < kT; ++t) to[t] = column + t < p.columns ? from[t * words] : 0;
  }
  __device__ void store(const GridConvJob& p, void* data, std::int64_t strip, int column,
                        const Numbers<T> (&from)[kT]) const {
    Word* to = static_cast<Word*>(data) + strip;
#pragma unroll
    for (int t = 0; t < kT; ++t) {
      if (column + t < p.columns) to[t * words] = pack<T>(from[t]);
    }
  }
};

template <class T>
__device__ inline void ask_for(const GridConvJob& p, const Lane<T>& lane, const void* data, const Walk& walk) {
  if (data != nullptr) lane.tokens(p, data, walk.image).template prefetch<kConvBand, kT>(walk.first, walk.column);
}

// f(walk) for those of this warp.
template <class F>
__device__ inline void each_walk(const GridConvJob& p, const F& f) {
  const int strips = (p.columns + kT - 1) / kT, bands = (p.rows + kConvBand - 1) / kConvBand, each = strips * bands;
  const std::int64_t walks = p.images * each;
#pragma unroll 1
  for (std::int64_t walk = blockIdx.y * kConvWarps + threadIdx.x / 32; walk < walks; walk += gridDim.y * kConvWarps) {
    const std::int64_t image = walk / each;
    const int rest = static_cast<int>(walk - image * each), first = rest / strips * kConvBand;
    f(Walk{image, first, min(first + kConvBand, p.rows), rest % strips * kT});
  }
}

// K rows of a strip with what is beside it, and the next row, which is on its way.
template <int K>
struct Window {
  Word rows[K][kT + K - 1], next[kT + K - 1];

  __device__ Window(const Tokens& from, const Walk& walk) {
#pragma unroll
    for (int ky = 1; ky < K; ++ky) from.load(walk.first + ky - 1 - K / 2, walk.column - K / 2, rows[ky]);
    from.load(walk.first + K / 2, walk.column - K / 2, next);
  }

  // Down to `row`, each in turn.
  __device__ void move(const Tokens& from, const Walk& walk, int row) {
#pragma unroll
    for (int i = 0; i < kT + K - 1; ++i) {
#pragma unroll
      for (int ky = 1; ky < K; ++ky) rows[ky - 1][i] = rows[ky][i];
      rows[K - 1][i] = next[i];
    }
    if (row + 1 < walk.end) from.load(row + 1 + K / 2, walk.column - K / 2, next);
  }

  // f(t, tap, word) for every token of the strip and the taps over it.
  template <class F>
  __device__ void each(const F& f) const {
#pragma unroll
    for (int ky = 0; ky < K; ++ky) {
#pragma unroll
      for (int kx = 0; kx < K; ++kx) {
#pragma unroll
        for (int t = 0; t < kT; ++t) f(t, ky * K + kx, rows[ky][t + kx]);
      }
    }
  }
};

template <int K, class T>
__global__ void __launch_bounds__(kThreads, K == 3 ? 5 : 3) grid_conv_kernel(GridConvJob p) {
  const Lane<T> lane(p);
  if (!lane.inside()) return;
  Numbers<T> taps[K * K], bias;
#pragma unroll
  for (int tap = 0; tap < K * K; ++tap)
    taps[tap] = lane.numbers(p.weight + tap * static_cast<std::int64_t>(p.channels));
  if (p.bias != nullptr) bias = lane.numbers(p.bias);
  each_walk(p, [&](const Walk& walk) {
    const Tokens v = lane.tokens_of_v(p, walk.image);
    v.prefetch<kConvBand, kT>(walk.first, walk.column);
    ask_for(p, lane, p.base, walk);
    ask_for(p, lane, p.gate, walk);
    Window<K> window(v, walk);
#pragma unroll 1
    for (int row = walk.first; row < walk.end; ++row) {
      const std::int64_t strip = lane.strip(p, walk, row);
      Word base[kT] = {}, gate[kT] = {};
      if (p.base != nullptr) lane.load(p, p.base, strip, walk.column, base);
      if (p.gate != nullptr) lane.load(p, p.gate, strip, walk.column, gate);
      window.move(v, walk, row);
      Numbers<T> sums[kT];
#pragma unroll
      for (int t = 0; t < kT; ++t) sums[t] = bias;
      window.each([&](int t, int tap, Word word) {
        const Numbers<T> x = unpack<T>(word);
#pragma unroll
        for (int i = 0; i < kWord<T>; ++i) sums[t].x[i] = fmaf(taps[tap].x[i], x.x[i], sums[t].x[i]);
      });
#pragma unroll
      for (int t = 0; t < kT; ++t) {
        const Numbers<T> b = unpack<T>(base[t]), g = unpack<T>(gate[t]);
#pragma unroll
        for (int i = 0; i < kWord<T>; ++i) {
          const float factor = p.gate == nullptr ? 1.0f : g.x[i] * sigmoid(g.x[i]);
          sums[t].x[i] = fmaf(b.x[i], factor, sums[t].x[i]);
        }
      }
      lane.store(p, p.out, strip, walk.column, sums);
    }
  });
}

// The sums of a block's warps, each tap's in order of the warps, are its part; the last one is of the bias.
template <int K, class T>
__device__ inline void write_part(const GridConvJob& p, const Numbers<T> (&sums)[K * K + 1]) {
  constexpr int kChannels = 32 * kWord<T>, kSums = (K * K + 1) * kChannels;
  __shared__ float shared[kConvWarps][kSums];
#pragma unroll
  for (int tap = 0; tap < K * K + 1; ++tap) {
#pragma unroll
    for (int i = 0; i < kWord<T>; ++i)
      shared[threadIdx.x / 32][tap * kChannels + threadIdx.x % 32 * kWord<T> + i] = sums[tap].x[i];
  }
  __syncthreads();
  float* part = p.parts + blockIdx.y * static_cast<std::int64_t>(K * K + 1) * p.channels;
  for (int at = static_cast<int>(threadIdx.x); at < kSums; at += kThreads) {
    const int channel = static_cast<int>(blockIdx.x) * kChannels + at % kChannels;
    float sum = 0;
    for (int warp = 0; warp < kConvWarps; ++warp) sum += shared[warp][at];
    if (channel < p.channels) part[at / kChannels * static_cast<std::int64_t>(p.channels) + channel] = sum;
  }
}

// Gradients of base and gate for a strip of a row.
template <class T>
__device__ inline void gate_gradients(const GridConvJob& p, const Lane<T>& lane, std::int64_t strip, int column,
                                      const Word (&dout)[kT], const Word (&base)[kT], const Word (&gate)[kT]) {
  Numbers<T> dbase[kT], dgate[kT];
#pragma unroll
  for (int t = 0; t < kT; ++t) {
    const Numbers<T> d = unpack<T>(dout[t]), b = unpack<T>(base[t]), gates = unpack<T>(gate[t]);
#pragma unroll
    for (int i = 0; i < kWord<T>; ++i) {
      const float g = gates.x[i], s = sigmoid(g);
      dbase[t].x[i] = d.x[i] * (g * s);
      dgate[t].x[i] = d.x[i] * b.x[i] * (s * fmaf(g, 1.0f - s, 1.0f));
    }
  }
  lane.store(p, p.dbase, strip, column, dbase);
  lane.store(p, p.dgate, strip, column, dgate);
}

template <int K, class T, bool kGate>
__global__ void __launch_bounds__(kThreads, K == 3 ? 4 : 1) grid_conv_gradient_kernel(GridConvJob p) {
  constexpr int kTaps = K * K;
  const Lane<T> lane(p);
  Numbers<T> taps[kTaps], sums[kTaps + 1];  // taps turned round: taps[i] is over dout[x - k] of tap kTaps - 1 - i
  if (lane.inside()) {
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap)
      taps[kTaps - 1 - tap] = lane.numbers(p.weight + tap * static_cast<std::int64_t>(p.channels));
    each_walk(p, [&](const Walk& walk) {
      const Tokens dout = lane.tokens(p, p.dout, walk.image), vs = lane.tokens_of_v(p, walk.image);
      Window<K> window(dout, walk);
#pragma unroll 1
      for (int row = walk.first; row < walk.end; ++row) {
        const std::int64_t strip = lane.strip(p, walk, row);
        Word v[kT], base[kT] = {}, gate[kT] = {};
        vs.load(row, walk.column, v);
        if constexpr (kGate) lane.load(p, p.base, strip, walk.column, base);
        if constexpr (kGate) lane.load(p, p.gate, strip, walk.column, gate);
        window.move(dout, walk, row);
        Numbers<T> dv[kT];
        window.each([&](int t, int tap, Word word) {
          const Numbers<T> d = unpack<T>(word), own = unpack<T>(v[t]);
#pragma unroll
          for (int i = 0; i < kWord<T>; ++i) {
            dv[t].x[i] = fmaf(taps[tap].x[i], d.x[i], dv[t].x[i]);
            sums[kTaps - 1 - tap].x[i] = fmaf(own.x[i], d.x[i], sums[kTaps - 1 - tap].x[i]);
            if (tap == kTaps / 2) sums[kTaps].x[i] += d.x[i];
          }
        });
        lane.store(p, p.out, strip, walk.column, dv);
        if constexpr (kGate) {
          Word middle[kT];
#pragma unroll
          for (int t = 0; t < kT; ++t) middle[t] = window.rows[K / 2][K / 2 + t];
          gate_gradients<T>(p, lane, strip, walk.column, middle, base, gate);
        }
      }
    });
  }
  write_part<K, T>(p, sums);
}

// A block of threads adds up the parts of a tap for 32 channels, each warp every eighth.
constexpr int kSumWarps = 8;

__global__ void __launch_bounds__(32 * kSumWarps) grid_conv_sums_kernel(GridConvJob p, int parts) {
  __shared__ float shared[kSumWarps][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int channel = static_cast<int>(blockIdx.x) * 32 + lane, tap = static_cast<int>(blockIdx.y);
  const int taps = static_cast<int>(gridDim.y) - 1;
  float sum = 0;
  if (channel < p.channels) {
#pragma unroll 16  // so many loads under way
    for (int part = warp; part < parts; part += kSumWarps)
      sum += p.parts[(static_cast<std::int64_t>(part) * (taps + 1) + tap) * p.channels + channel];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || channel >= p.channels) return;
  for (int from = 1; from < kSumWarps; ++from) sum += shared[from][lane];
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

// Blocks of threads: 128 bytes of channels by walks, or parts of them.
template <class T>
dim3 grid_of(const GridConvJob& job, std::int64_t most) {
  const std::int64_t blocks = (conv_walks(job.images, job.rows, job.columns) + kConvWarps - 1) / kConvWarps;
  return {static_cast<unsigned>((job.channels / kWord<T> + 31) / 32), static_cast<unsigned>(std::min(blocks, most))};
}

}  // namespace

void grid_conv_cuda(const GridConvJob& job) {
  constexpr std::int64_t kMostBlocks = 65535;  // of a grid; more walks are taken in turn
  with_dtype(job.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* kernel = job.kernel == 3 ? &grid_conv_kernel<3, T> : &grid_conv_kernel<5, T>;
    kernel<<<grid_of<T>(job, kMostBlocks), kThreads, 0, stream_of(job.stream)>>>(job);
  });
  check_launch("grid_conv_kernel");
}

void grid_conv_backward_cuda(const GridConvJob& job) {
  const std::int64_t parts = conv_parts(conv_walks(job.images, job.rows, job.columns));
  if (parts > 0) {
    with_dtype(job.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto* kernel =
          job.kernel == 3 ? &grid_conv_gradient_kernel<3, T, false> : &grid_conv_gradient_kernel<5, T, false>;
      if (job.gate != nullptr)
        kernel = job.kernel == 3 ? &grid_conv_gradient_kernel<3, T, true> : &grid_conv_gradient_kernel<5, T, true>;
      kernel<<<grid_of<T>(job, parts), kThreads, 0, stream_of(job.stream)>>>(job);
    });
    check_launch("grid_conv_gradient_kernel");
  }
  const dim3 grid(static_cast<unsigned>(job.channels + 31) / 32, static_cast<unsigned>(job.kernel * job.kernel + 1));
  grid_conv_sums_kernel<<<grid, 32 * kSumWarps, 0, stream_of(job.stream)>>>(job, static_cast<int>(parts));
  check_launch("grid_conv_sums_kernel");
}

}  // namespace mhla
