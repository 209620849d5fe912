// A thread turns as many pairs as 16 bytes hold channels, or one where rows are not aligned. The threads of a block lie
// side by side over pairs, then heads of q and k, then tokens: a line of the table is read from memory once and from
// the first-level cache for every other head. Traffic: q and k in and out once.
#include "mhla/core/cuda_check.h"
#include "mhla/core/error.h"
#include "mhla/kernels/common/cuda/tokens.cuh"
#include "mhla/kernels/rope/rope_problem.h"

namespace mhla {
namespace {

using cuda::feature;
using cuda::narrow;
using cuda::through_slope;
using cuda::widen;

constexpr unsigned kThreads = 256;

template <class T, int kSize>
struct alignas(kSize * sizeof(T)) Some {
  T x[kSize];
};

// kSize floats in pieces of 16 bytes.
template <int kSize>
__device__ inline void load_line(const float* from, float (&to)[kSize]) {
  constexpr int kPiece = kSize < 4 ? kSize : 4;
#pragma unroll
  for (int i = 0; i < kSize; i += kPiece) {
    const auto piece = *reinterpret_cast<const Some<float, kPiece>*>(from + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) to[i + j] = piece.x[j];
  }
}

// Pairs [first, first + kSize) of a row of D channels: two pieces of kSize channels, side by side or half a row apart.
template <class T, int kSize, bool kHalves>
__device__ inline void load_pairs(const T* row, unsigned first, unsigned D, float (&a)[kSize], float (&b)[kSize]) {
  const T* from = row + (kHalves ? first : 2 * first);
  const auto low = *reinterpret_cast<const Some<T, kSize>*>(from);
  const auto high = *reinterpret_cast<const Some<T, kSize>*>(from + (kHalves ? D / 2 : kSize));
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (kHalves) {
      a[i] = widen(low.x[i]), b[i] = widen(high.x[i]);
    } else {
      a[i] = widen(2 * i < kSize ? low.x[2 * i % kSize] : high.x[2 * i % kSize]);
      b[i] = widen(2 * i + 1 < kSize ? low.x[(2 * i + 1) % kSize] : high.x[(2 * i + 1) % kSize]);
    }
  }
}

template <class T, int kSize, bool kHalves>
__device__ inline void store_pairs(T* row, unsigned first, unsigned D, const float (&a)[kSize],
                                   const float (&b)[kSize]) {
  Some<T, kSize> low, high;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const int j = kSize + i;  // channel of the second piece, counted from the first of the first
    if (kHalves) {
      low.x[i] = narrow<T>(a[i]), high.x[i] = narrow<T>(b[i]);
    } else {
      low.x[i] = narrow<T>(i % 2 == 0 ? a[i / 2] : b[i / 2]);
      high.x[i] = narrow<T>(j % 2 == 0 ? a[j / 2] : b[j / 2]);
    }
  }
  T* to = row + (kHalves ? first : 2 * first);
  *reinterpret_cast<Some<T, kSize>*>(to) = low;
  *reinterpret_cast<Some<T, kSize>*>(to + (kHalves ? D / 2 : kSize)) = high;
}

// How a call is cut: an item is a thread's share of a token.
struct Cut {
  unsigned items;   // of a token
  unsigned tokens;  // of a block of threads; 1 where blockIdx.y cuts a token
  unsigned blocks;  // of a batch element
};

template <class T, int kSize, bool kHalves, bool kBackward>
__global__ void __launch_bounds__(kThreads, 4) rope_kernel(const __grid_constant__ RopeProblem p, Cut cut) {
  const unsigned item = blockIdx.y * kThreads + threadIdx.x, local = item / cut.items, rest = item - local * cut.items;
  const unsigned b = blockIdx.x / cut.blocks;
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x - b * cut.blocks) * cut.tokens + local;
  if (local >= cut.tokens || n >= p.N) return;
  const auto D = static_cast<unsigned>(p.D), pieces = D / 2 / kSize, H = static_cast<unsigned>(p.part[0].heads);
  const unsigned any_head = rest / pieces, first = (rest - any_head * pieces) * kSize;
  const RopePart& part = any_head < H ? p.part[0] : p.part[1];
  const unsigned head = any_head < H ? any_head : any_head - H;
  const bool mapped = p.map != FeatureMap::kIdentity;
  float c[kSize], s[kSize], x[kSize], y[kSize], x_in[kSize] = {}, y_in[kSize] = {};
  load_pairs<T, kSize, kHalves>(part.from.row<const T>(b, n, head), first, D, x, y);
  if (kBackward && mapped)  // asked for with the rest, not when it is needed
    load_pairs<T, kSize, kHalves>(part.slope.row<const T>(b, n, head), first, D, x_in, y_in);
  load_line<kSize>(p.cos.row<const float>(b, n) + first, c);
  load_line<kSize>(p.sin.row<const float>(b, n) + first, s);
  if (!kBackward && mapped) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] = feature(p.map, x[i]), y[i] = feature(p.map, y[i]);
  }
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float xc = x[i] * c[i], ys = y[i] * s[i], xs = x[i] * s[i], yc = y[i] * c[i];
    x[i] = kBackward ? xc + ys : xc - ys;
    y[i] = kBackward ? yc - xs : xs + yc;
  }
  if (kBackward && mapped) {
#pragma unroll
    for (int i = 0; i < kSize; ++i)
      x[i] = through_slope(p.map, x_in[i], x[i]), y[i] = through_slope(p.map, y_in[i], y[i]);
  }
  store_pairs<T, kSize, kHalves>(part.to.row<T>(b, n, head), first, D, x, y);
}

template <class T, int kSize>
void launch(const RopeProblem& p) {
  const std::int64_t items = p.D / 2 / kSize * p.heads();
  const std::int64_t tokens = items <= kThreads ? std::min<std::int64_t>(p.N, kThreads / items) : 1;
  const std::int64_t blocks = (p.N + tokens - 1) / tokens, slices = (tokens * items + kThreads - 1) / kThreads;
  constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1, kMostSlices = 65535;
  if (p.B > kMostBlocks / blocks)
    fail("rope: ", p.B, " x ", p.N, " tokens are ", p.B * blocks, " blocks of threads, expected fewer than 2^31");
  if (slices > kMostSlices)
    fail("rope: ", p.heads(), " heads of ", p.D, " channels are ", slices, " blocks of threads, expected at most ",
         kMostSlices);
  const dim3 grid(static_cast<unsigned>(p.B * blocks), static_cast<unsigned>(slices));
  const Cut cut{static_cast<unsigned>(items), static_cast<unsigned>(tokens), static_cast<unsigned>(blocks)};
  const unsigned threads = slices > 1 ? kThreads : (cut.tokens * cut.items + 31) / 32 * 32;
  const auto start = [&](auto kernel) {
    kernel<<<grid, threads, 0, stream_of(p.stream)>>>(p, cut);
    check_launch("rope_kernel");
  };
  if (p.halves) {
    p.backward ? start(rope_kernel<T, kSize, true, true>) : start(rope_kernel<T, kSize, true, false>);
  } else {
    p.backward ? start(rope_kernel<T, kSize, false, true>) : start(rope_kernel<T, kSize, false, false>);
  }
}

template <class T>
void launch_as(const RopeProblem& p) {
  if (p.aligned) return launch<T, 16 / sizeof(T)>(p);
  launch<T, 1>(p);
}

}  // namespace

void rope_cuda(const RopeProblem& p, Workspace&, Executor&) {
  if (p.dtype == DType::kBF16) return launch_as<bf16>(p);
  if (p.dtype == DType::kF16) return launch_as<f16>(p);
  launch_as<float>(p);
}

}  // namespace mhla
