// A block of threads works on kModulatedTokens tokens of one sample, whose scale, shift and gate it reads once; a token
// lies in the registers of a group of threads (row_groups.cuh). What a dtype costs is a branch that all threads take
// alike; memory is the limit.
#include "mhla/core/cuda_check.h"
#include "mhla/kernels/norm/modulated_norm_job.h"
#include "mhla/kernels/norm/row_groups.cuh"

namespace mhla {
namespace {

using namespace rows;

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
