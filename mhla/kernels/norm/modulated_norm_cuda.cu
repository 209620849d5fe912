// A block of threads works on kModulatedTokens tokens of one sample, whose scale, shift and gate it reads once; a token
// lies in the registers of a group of threads (row_groups.cuh). What a dtype costs is a branch that all threads take
// alike. Memory is the limit, so everything a token needs is asked for before the first sum over it. (Calling the lines
// of the next token into the cache meanwhile made the gradient 5 % slower on an H200.)
#include <algorithm>

#include "mhla/core/cuda_check.h"
#include "mhla/kernels/norm/modulated_norm_job.h"
#include "mhla/kernels/norm/row_groups.cuh"

namespace mhla {
namespace {

using namespace rows;

constexpr int kForwardTokens = 32;  // of a block without sums: twice as many blocks are spread more evenly

// What the norm of a token needs of its group.
template <class S>
struct Norm {
  GroupShared& shared;
  int turn = 0;

  __device__ float sum(float x) { return group_sum<S>(x, shared, turn); }
  __device__ void sum(float (&x)[2]) { group_sums<S>(x, shared, turn); }

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

// Two rows of the sample, [2][X] in shared memory: registers are for what is on its way.
template <class S, class Rows>
__device__ inline void keep(const Rows& row, int which, int X, float* kept) {
  if (group<S>() != which % S::kGroups) return;
  Values<S> own;
  load<S>(row, blockIdx.y, X, own);
  store_as<S, float>(kept + which * X, 0, X, own);
}

// f(row) for the tokens of this group, a row being one of [B N], out of kTokens of a block. Groups may differ in their
// number.
template <class S, int kTokens, class F>
__device__ inline void each_token(const ModulatedNormJob& p, const F& f) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kTokens;
  const std::int64_t end = first + kTokens < p.tokens ? first + kTokens : p.tokens;
#pragma unroll 1
  for (std::int64_t token = first + group<S>(); token < end; token += S::kGroups) f(blockIdx.y * p.tokens + token);
}

template <class S, bool kBranch>
__global__ void __launch_bounds__(kThreads, S::kPieces < 4 ? 3 : 2) modulated_norm_kernel(ModulatedNormJob p) {
  extern __shared__ __align__(16) float kept[];  // scale, shift
  __shared__ GroupShared shared;
  Norm<S> norm{shared};
  Values<S> gate;
  keep<S>(p.scale, 0, p.X, kept);
  keep<S>(p.shift, 1, p.X, kept);
  if constexpr (kBranch) load<S>(p.gate, blockIdx.y, p.X, gate);
  __syncthreads();
  const auto token = [&](std::int64_t row) {
    Raw<S> raw_x, raw_branch;
    fetch<S>(p.x, row, p.X, raw_x);
    if constexpr (kBranch) fetch<S>(p.branch, row, p.X, raw_branch);
    Values<S> x;
    widen_row<S>(p.x, raw_x, x);
    if constexpr (kBranch) {
      Values<S> branch;
      widen_row<S>(p.branch, raw_branch, branch);
      each<S>([&](int piece, int i) { x[piece][i] = fmaf(gate[piece][i], branch[piece][i], x[piece][i]); });
      store<S>(p.sum, row, p.X, x);
    }
    norm.normalize(x, p.X, p.eps);
    Values<S> scale = {}, shift = {};
    load_as<S, float>(kept, 0, p.X, scale);
    load_as<S, float>(kept, p.X, p.X, shift);
    each<S>([&](int piece, int i) { x[piece][i] = fmaf(x[piece][i], scale[piece][i] + 1.0f, shift[piece][i]); });
    store<S>(p.y, row, p.X, x);
  };
  each_token<S, kForwardTokens>(p, token);
}

template <class S, bool kBranch>
__global__ void __launch_bounds__(kThreads, S::kPieces < 4 ? 2 : 1) modulated_norm_gradient_kernel(ModulatedNormJob p) {
  extern __shared__ __align__(16) float kept[];  // scale, gate; at the end sums [kGroups][X]
  __shared__ GroupShared shared;
  Norm<S> norm{shared};
  const float share = 1.0f / static_cast<float>(p.X);
  Values<S> dshift = {}, dscale = {}, dgate = {};
  keep<S>(p.scale, 0, p.X, kept);
  if constexpr (kBranch) keep<S>(p.gate, 1, p.X, kept);
  __syncthreads();
  const auto token = [&](std::int64_t row) {
    Raw<S> raw_x, raw_dy, raw_dsum, raw_branch;
    fetch<S>(p.x, row, p.X, raw_x);
    fetch<S>(p.y, row, p.X, raw_dy);
    fetch<S>(p.sum, row, p.X, raw_dsum);
    if constexpr (kBranch) fetch<S>(p.branch, row, p.X, raw_branch);
    Values<S> x, dy;
    widen_row<S>(p.x, raw_x, x);
    const float factor = norm.normalize(x, p.X, p.eps);
    widen_row<S>(p.y, raw_dy, dy);
    Values<S> factors = {};
    load_as<S, float>(kept, 0, p.X, factors);
    float sums[2] = {};  // of the gradient along the token, and its level
    each<S>([&](int piece, int i) {
      dshift[piece][i] += dy[piece][i];
      dscale[piece][i] = fmaf(dy[piece][i], x[piece][i], dscale[piece][i]);
      dy[piece][i] = fmaf(dy[piece][i], factors[piece][i], dy[piece][i]);  // of the normalised token
      sums[0] = fmaf(dy[piece][i], x[piece][i], sums[0]);
      sums[1] += dy[piece][i];
    });
    norm.sum(sums);
    const float along = sums[0] * share, level = sums[1] * share;
    each<S>([&](int piece, int i) { dy[piece][i] = factor * (fmaf(-along, x[piece][i], dy[piece][i]) - level); });
    widen_row<S>(p.sum, raw_dsum, x);  // zeros without one
    each<S>([&](int piece, int i) { dy[piece][i] += x[piece][i]; });
    store<S>(p.dx, row, p.X, dy);
    if constexpr (kBranch) {
      widen_row<S>(p.branch, raw_branch, x);
      load_as<S, float>(kept, p.X, p.X, factors);
      each<S>([&](int piece, int i) {
        dgate[piece][i] = fmaf(dy[piece][i], x[piece][i], dgate[piece][i]);
        dy[piece][i] *= factors[piece][i];
      });
      store<S>(p.dbranch, row, p.X, dy);
    }
  };
  each_token<S, kModulatedTokens>(p, token);
  const auto sum_groups = [&](const Values<S>& own, int which) {
    float* to = p.parts + ((blockIdx.y * static_cast<std::int64_t>(gridDim.x) + blockIdx.x) * 3 + which) * p.X;
    each_piece<S>(p.X, [&](int piece, int column) {
#pragma unroll
      for (int i = 0; i < 4; ++i) kept[group<S>() * p.X + column + i] = own[piece][i];
    });
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < p.X; column += kThreads) {
      float sum = 0;
      for (int from = 0; from < S::kGroups; ++from) sum += kept[from * p.X + column];
      to[column] = sum;
    }
    __syncthreads();
  };
  __syncthreads();
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

dim3 grid_of(const ModulatedNormJob& job, std::int64_t parts) {
  return {static_cast<unsigned>(parts), static_cast<unsigned>(job.samples)};
}

}  // namespace

void modulated_norm_cuda(const ModulatedNormJob& job) {
  with_token(job.X, [&](auto token) {
    using S = decltype(token);
    const std::size_t bytes = static_cast<std::size_t>(2 * job.X) * sizeof(float);
    auto* kernel = job.branch.data == nullptr ? &modulated_norm_kernel<S, false> : &modulated_norm_kernel<S, true>;
    kernel<<<grid_of(job, (job.tokens + kForwardTokens - 1) / kForwardTokens), kThreads, bytes,
             stream_of(job.stream)>>>(job);
    check_launch("modulated_norm_kernel");
  });
}

void modulated_norm_backward_cuda(const ModulatedNormJob& job) {
  const dim3 grid = grid_of(job, modulated_parts(job.tokens));
  if (grid.x > 0) {
    with_token(job.X, [&](auto token) {
      using S = decltype(token);
      const std::size_t bytes = static_cast<std::size_t>(std::max(S::kGroups, 2) * job.X) * sizeof(float);
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
