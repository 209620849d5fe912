// A block of threads works on kModulatedTokens tokens of one sample, whose scale, shift and gate it reads once. A token
// lies in the registers of a group of 32, 64, 128 or 256 threads: thread t of g holds columns 4 t to 4 t + 3 of every
// 4 g, at most four such pieces. What a dtype costs is a branch that all threads take alike; memory is the limit.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/intrinsics.cuh"
#include "mhla/kernels/norm/modulated_norm_job.h"

namespace mhla {
namespace {

using cuda::narrow;
using cuda::widen;

constexpr int kThreads = 256;

template <int kGroup_, int kPieces_>
struct Token {  // how one lies
  static constexpr int kGroup = kGroup_, kPieces = kPieces_, kGroups = kThreads / kGroup_;
};

template <class S>
using Values = float[S::kPieces][4];

template <class S>
__device__ inline int group() {
  return static_cast<int>(threadIdx.x) / S::kGroup;
}

// f(piece, column of its first value) for the pieces of this thread that are there.
template <class S, class F>
__device__ inline void each_piece(int X, const F& f) {
#pragma unroll
  for (int piece = 0; piece < S::kPieces; ++piece) {
    const int column = (piece * S::kGroup + static_cast<int>(threadIdx.x) % S::kGroup) * 4;
    if (column < X) f(piece, column);
  }
}

template <class S, class F>
__device__ inline void each(const F& f) {
#pragma unroll
  for (int piece = 0; piece < S::kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 4; ++i) f(piece, i);
  }
}

// Sum over the threads of a group, the same bits in every one. `shared`: two rows of a value per warp, used in turn so
// that one barrier is enough.
template <class S>
__device__ inline float group_sum(float x, float (&shared)[2][kThreads / 32], int& turn) {
#pragma unroll
  for (int away = 16; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
  if constexpr (S::kGroup > 32) {
    constexpr int kWarps = S::kGroup / 32;
    turn ^= 1;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) shared[turn][warp] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(group<S>() + 1), "n"(S::kGroup) : "memory");
    x = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) x += shared[turn][warp / kWarps * kWarps + i];
  }
  return x;
}

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T x[4];
};

template <class S, class T>
__device__ inline void load_as(const void* data, std::int64_t at, int X, Values<S>& to) {
  const T* from = static_cast<const T*>(data) + at;
  each_piece<S>(X, [&](int piece, int column) {
    const Four<T> four = *reinterpret_cast<const Four<T>*>(from + column);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[piece][i] = widen(four.x[i]);
  });
}

// Columns behind the last one are zeros.
template <class S>
__device__ inline void load(const ModulatedRows& from, std::int64_t row, int X, Values<S>& to) {
  each<S>([&](int piece, int i) { to[piece][i] = 0.0f; });
  const std::int64_t at = row * from.stride;
  if (from.dtype == DType::kBF16) return load_as<S, bf16>(from.data, at, X, to);
  if (from.dtype == DType::kF16) return load_as<S, f16>(from.data, at, X, to);
  load_as<S, float>(from.data, at, X, to);
}

template <class S, class T>
__device__ inline void store_as(void* data, std::int64_t at, int X, const Values<S>& from) {
  T* to = static_cast<T*>(data) + at;
  each_piece<S>(X, [&](int piece, int column) {
    Four<T> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.x[i] = narrow<T>(from[piece][i]);
    *reinterpret_cast<Four<T>*>(to + column) = four;
  });
}

template <class S>
__device__ inline void store(const ModulatedRows& to, std::int64_t row, int X, const Values<S>& from) {
  const std::int64_t at = row * to.stride;
  if (to.dtype == DType::kBF16) return store_as<S, bf16>(to.data, at, X, from);
  if (to.dtype == DType::kF16) return store_as<S, f16>(to.data, at, X, from);
  store_as<S, float>(to.data, at, X, from);
}

// What the norm of a token needs of its group.
template <class S>
struct Norm {
  float (&shared)[2][kThreads / 32];
  int turn = 0;

  __device__ float sum(float x) { return group_sum<S>(x, shared, turn); }

  // x becomes (x - mean) / sqrt(variance + eps); returns 1 / sqrt(...).
  __device__ float normalize(Values<S>& x, int X, float eps) {
    const float share = 1.0f / static_cast<float>(X);
    float level = 0, squares = 0;
    each<S>([&](int piece, int i) { level += x[piece][i]; });
    const float mean = sum(level) * share;
    each_piece<S>(X, [&](int piece, int) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[piece][i] -= mean;
    });
    each<S>([&](int piece, int i) { squares = fmaf(x[piece][i], x[piece][i], squares); });
    const float factor = rsqrtf(sum(squares) * share + eps);
    each<S>([&](int piece, int i) { x[piece][i] *= factor; });
    return factor;
  }
};

// f(row) for the tokens of this group, a row being one of [B N]. Groups may differ in their number.
template <class S, class F>
__device__ inline void each_token(const ModulatedNormJob& p, const F& f) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kModulatedTokens;
  const std::int64_t end = first + kModulatedTokens < p.tokens ? first + kModulatedTokens : p.tokens;
#pragma unroll 1
  for (std::int64_t token = first + group<S>(); token < end; token += S::kGroups) f(blockIdx.y * p.tokens + token);
}

template <class S, bool kBranch>
__global__ void __launch_bounds__(kThreads) modulated_norm_kernel(ModulatedNormJob p) {
  __shared__ float shared[2][kThreads / 32];
  Norm<S> norm{shared};
  Values<S> scale, shift, gate;
  load<S>(p.scale, blockIdx.y, p.X, scale);
  load<S>(p.shift, blockIdx.y, p.X, shift);
  if constexpr (kBranch) load<S>(p.gate, blockIdx.y, p.X, gate);
  each<S>([&](int piece, int i) { scale[piece][i] += 1.0f; });
  each_token<S>(p, [&](std::int64_t row) {
    Values<S> x;
    load<S>(p.x, row, p.X, x);
    if constexpr (kBranch) {
      Values<S> branch;
      load<S>(p.branch, row, p.X, branch);
      each<S>([&](int piece, int i) { x[piece][i] = fmaf(gate[piece][i], branch[piece][i], x[piece][i]); });
      store<S>(p.sum, row, p.X, x);
    }
    norm.normalize(x, p.X, p.eps);
    each<S>([&](int piece, int i) { x[piece][i] = fmaf(x[piece][i], scale[piece][i], shift[piece][i]); });
    store<S>(p.y, row, p.X, x);
  });
}

template <class S, bool kBranch>
__global__ void __launch_bounds__(kThreads) modulated_norm_gradient_kernel(ModulatedNormJob p) {
  extern __shared__ float sums[];  // [kGroups][X]
  __shared__ float shared[2][kThreads / 32];
  Norm<S> norm{shared};
  const float share = 1.0f / static_cast<float>(p.X);
  Values<S> scale, gate, dshift = {}, dscale = {}, dgate = {};
  load<S>(p.scale, blockIdx.y, p.X, scale);
  if constexpr (kBranch) load<S>(p.gate, blockIdx.y, p.X, gate);
  each_token<S>(p, [&](std::int64_t row) {
    Values<S> x, dy;
    load<S>(p.x, row, p.X, x);
    load<S>(p.y, row, p.X, dy);
    const float factor = norm.normalize(x, p.X, p.eps);
    float along = 0, level = 0;
    each<S>([&](int piece, int i) {
      dshift[piece][i] += dy[piece][i];
      dscale[piece][i] = fmaf(dy[piece][i], x[piece][i], dscale[piece][i]);
      dy[piece][i] = fmaf(dy[piece][i], scale[piece][i], dy[piece][i]);  // of the normalised token
      along = fmaf(dy[piece][i], x[piece][i], along);
      level += dy[piece][i];
    });
    along = norm.sum(along) * share, level = norm.sum(level) * share;
    each<S>([&](int piece, int i) { dy[piece][i] = factor * (fmaf(-along, x[piece][i], dy[piece][i]) - level); });
    if (p.sum.data != nullptr) {
      load<S>(p.sum, row, p.X, x);
      each<S>([&](int piece, int i) { dy[piece][i] += x[piece][i]; });
    }
    store<S>(p.dx, row, p.X, dy);
    if constexpr (kBranch) {
      load<S>(p.branch, row, p.X, x);
      each<S>([&](int piece, int i) {
        dgate[piece][i] = fmaf(dy[piece][i], x[piece][i], dgate[piece][i]);
        dy[piece][i] *= gate[piece][i];
      });
      store<S>(p.dbranch, row, p.X, dy);
    }
  });
  const auto sum_groups = [&](const Values<S>& own, int which) {
    float* to = p.parts + ((blockIdx.y * static_cast<std::int64_t>(gridDim.x) + blockIdx.x) * 3 + which) * p.X;
    each_piece<S>(p.X, [&](int piece, int column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[group<S>() * p.X + column + i] = own[piece][i];
    });
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < p.X; column += kThreads) {
      float sum = 0;
      for (int from = 0; from < S::kGroups; ++from) sum += sums[from * p.X + column];
      to[column] = sum;
    }
    __syncthreads();
  };
  sum_groups(dshift, 0);
  sum_groups(dscale, 1);
  if constexpr (kBranch) sum_groups(dgate, 2);
}

// A block of threads sums 32 columns of a sample's shift, scale or gate over its parts, each warp every eighth.
__global__ void __launch_bounds__(kThreads) modulated_norm_sums_kernel(ModulatedNormJob p, int parts) {
  __shared__ float shared[kThreads / 32][32];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int column = static_cast<int>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (column < p.X) {
    for (int part = warp; part < parts; part += kThreads / 32)
      sum += p.parts[((blockIdx.y * static_cast<std::int64_t>(parts) + part) * 3 + blockIdx.z) * p.X + column];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= p.X) return;
  for (int from = 1; from < kThreads / 32; ++from) sum += shared[from][lane];
  p.dmodulation[(blockIdx.y * static_cast<std::int64_t>(3) + blockIdx.z) * p.X + column] = sum;
}

// f(token) with the least that holds one.
template <class F>
void with_token(int X, const F& f) {
  if (X <= 128) return f(Token<32, 1>{});
  if (X <= 256) return f(Token<32, 2>{});
  if (X <= 384) return f(Token<32, 3>{});
  if (X <= 512) return f(Token<32, 4>{});
  if (X <= 768) return f(Token<64, 3>{});
  if (X <= 1024) return f(Token<64, 4>{});
  if (X <= 1536) return f(Token<128, 3>{});
  if (X <= 2048) return f(Token<128, 4>{});
  f(Token<256, 4>{});
}

dim3 grid_of(const ModulatedNormJob& job) {
  return {static_cast<unsigned>(modulated_parts(job.tokens)), static_cast<unsigned>(job.samples)};
}

}  // namespace

void modulated_norm_cuda(const ModulatedNormJob& job) {
  with_token(job.X, [&](auto token) {
    using S = decltype(token);
    auto* kernel = job.branch.data == nullptr ? &modulated_norm_kernel<S, false> : &modulated_norm_kernel<S, true>;
    kernel<<<grid_of(job), kThreads, 0, stream_of(job.stream)>>>(job);
    check_launch("modulated_norm_kernel");
  });
}

void modulated_norm_backward_cuda(const ModulatedNormJob& job) {
  const dim3 grid = grid_of(job);
  if (grid.x > 0) {
    with_token(job.X, [&](auto token) {
      using S = decltype(token);
      const std::size_t bytes = static_cast<std::size_t>(S::kGroups * job.X) * sizeof(float);
      auto* kernel = job.branch.data == nullptr ? &modulated_norm_gradient_kernel<S, false>
                                                : &modulated_norm_gradient_kernel<S, true>;
      kernel<<<grid, kThreads, bytes, stream_of(job.stream)>>>(job);
      check_launch("modulated_norm_gradient_kernel");
    });
  }
  const unsigned sums = job.branch.data == nullptr ? 2 : 3;
  const dim3 columns(static_cast<unsigned>(job.X + 31) / 32, grid.y, sums);
  modulated_norm_sums_kernel<<<columns, kThreads, 0, stream_of(job.stream)>>>(job, static_cast<int>(grid.x));
  check_launch("modulated_norm_sums_kernel");
}

}  // namespace mhla
