// What a backward pass is asked for, and dmix: products of summaries in parts, and their sum.
#pragma once

#include "mhla/kernels/common/cuda/sm80_phases.cuh"
#include "mhla/kernels/common/cuda/sm90_mix_product_plan.h"

namespace mhla::sm80 {

struct Gradients {
  Strided<const Bf16> dout;
  Strided<Bf16> dq, dk, dv;  // data null: not wanted
  float* dmix;               // [Hm, L, L], null: not wanted
  int L;
  std::int64_t dmix_head, dmix_row, dmix_column;
  float2* weights;        // w and c of tokens; not of every way, and null: w = scale, c = 0
  float* parts;           // of dmix
  float* maybe_diagonal;  // causal: [units / parts][M][diagonals], parts of dmix[i][i]
  int diagonals;
  double* maybe_whole;  // [Hm, whole_rows, whole_rows]: the sums of all chunks, where they do not go straight to dmix
  int whole_rows;
  bool whole_begun;   // another group of sequences is there already: add to it
  float* maybe_dden;  // [B, H, N]: gradients of p.maybe_den

  __device__ float* dden_row(const Arguments& p, int batch, int head) const {
    return maybe_dden + (static_cast<std::int64_t>(batch) * p.Hkv * p.group + head) * p.N;
  }

  __device__ float& dmix_at(int head, int i, int b) const {
    return dmix[head * dmix_head + i * dmix_row + b * dmix_column];
  }
};

// The gradients a problem asks for; buffers are the caller's.
inline Gradients gradients_of(const Problem& p) {
  Gradients g{};
  g.dout = strided<const Bf16>(p.dout);
  g.dq = strided<Bf16>(p.dq), g.dk = strided<Bf16>(p.dk), g.dv = strided<Bf16>(p.dv);
  if (!p.dmix.given()) return g;
  g.dmix = data_as<float>(p.dmix), g.L = static_cast<int>(p.L), g.dmix_head = p.Hm > 1 ? p.dmix.stride[0] : 0;
  g.dmix_row = p.dmix.stride[1], g.dmix_column = p.dmix.stride[2];
  return g;
}

// Strips of kColumns values of all summaries that a matrix mixes: those that a block of threads of a grid [splits]
// [matrices] takes.
template <int kColumns>
struct MatrixStrips {
  int M, X, parts, heads, start, count;  // every so many heads, from `start` on; strips of a summary
  int first, end;                        // items of this block of threads
  __device__ MatrixStrips(const Arguments& p, int X_) : M(p.M), X(X_), parts(p.parts), heads(p.mix_head ? p.Hkv : 1) {
    const int units = p.units / parts, matrix = static_cast<int>(blockIdx.y);
    start = p.mix_head ? (matrix - p.first_unit / parts % heads + heads) % heads : 0;
    count = (X + kColumns - 1) / kColumns;
    const std::int64_t items = start < units ? std::int64_t{(units - start + heads - 1) / heads} * parts * count : 0;
    first = static_cast<int>(items * blockIdx.x / gridDim.x);
    end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ int column(int item) const { return item % count * kColumns; }  // the first of a strip
  __device__ std::int64_t at(int item) const {                               // its first value
    const int index = item / count, part = index % parts;
    const int unit = (start + index / parts * heads) * parts + part;
    return static_cast<std::int64_t>(unit) * M * X + (item - index * count) * kColumns;
  }
};

// Rows and columns of dmix that a tile of products has.
constexpr int product_rows(std::int64_t M) { return M <= 16 ? 16 : M <= 32 ? 32 : 64; }

// Sums of dmix: a block of threads takes neighbours of a row, every kLanes-th part per lane. Few entries have many
// lanes, many have threads enough.
inline constexpr int kMixSumThreads = 256, kMixSumLanes = 32, kFewMixSumLanes = 8;
template <int kLanes = kMixSumLanes>
constexpr int kMixSumEntries = kMixSumThreads / kLanes;
template <int kLanes = kMixSumLanes>
dim3 mix_sum_grid(std::int64_t L, std::int64_t matrices) {
  return {static_cast<unsigned>((L + kMixSumEntries<kLanes> - 1) / kMixSumEntries<kLanes>), static_cast<unsigned>(L),
          static_cast<unsigned>(matrices)};
}

// The share of a lane of x[0] + x[stride] + ... over `count` terms, in f64: they may cancel.
template <int kLanes = kMixSumLanes>
__device__ inline double lane_sum(const float* x, std::int64_t stride, int count, int lane) {
  double sum = 0;
  x += lane * stride;
#pragma unroll 8  // so many terms on their way
  for (int at = lane; at < count; at += kLanes, x += kLanes * stride) sum += *x;
  return sum;
}

// dmix[i][b] of a matrix = the sum of share(matrix, i, b, lane) over the lanes; 0 where mix is not used. kWhole: to
// maybe_whole.
template <bool kWhole = false, int kLanes = kMixSumLanes, class F>
__device__ inline void sum_mix_gradient(const Arguments& p, const Gradients& g, const F& share) {
  constexpr int kEntries = kMixSumEntries<kLanes>;
  __shared__ double sums[kLanes][kEntries];
  const int lane = threadIdx.x / kEntries, entry = threadIdx.x % kEntries;
  const int matrix = blockIdx.z, i = blockIdx.y, b = blockIdx.x * kEntries + entry;
  double sum = i < p.M && b < p.M ? share(matrix, i, b, lane) : 0;
  sums[lane][entry] = sum;
  __syncthreads();
  if (lane > 0 || b >= (kWhole ? g.whole_rows : g.L)) return;
  for (int other = 1; other < kLanes; ++other) sum += sums[other][entry];
  if constexpr (kWhole) {
    double& to = g.maybe_whole[(static_cast<std::int64_t>(matrix) * g.whole_rows + i) * g.whole_rows + b];
    to = g.whole_begun ? to + sum : sum;
  } else {
    g.dmix_at(matrix, i, b) = static_cast<float>(sum);
  }
}

// Where the parts of dmix lie, and the launches that make and sum them, in mix_gradient_sm80.cu: with the kernels here
// every file that includes this compiled them, 16 times in all.
struct MixGradient {
  std::int64_t rounds = 0, splits = 0, round_size = 0;
  bool own = false;  // Hopper's own kernel makes the products

  MixGradient() = default;
  // Of M blocks and Hm matrices; `block`: values of a summary.
  MixGradient(std::int64_t M, std::int64_t Hm, std::int64_t units, std::int64_t block, std::int64_t rounds_,
              bool hopper, bool causal)
      : rounds(rounds_) {
    const std::int64_t rows = product_rows(M), tiles = (M + rows - 1) / rows;
    splits = hopper ? sm90::mix_product_splits(M, Hm, causal) : 0;
    own = splits > 0;
    if (!own) splits = mix_splits(tiles * tiles * Hm, units, block);
    round_size = Hm * splits * tiles * tiles * rows * rows;
  }
  [[nodiscard]] std::int64_t floats() const { return rounds * round_size; }  // of all parts
  // dS~ and S of the units of `a`. With packed mix^T, only where takes_back(), dS takes the place of dS~.
  void launch_products(const Arguments& a, Gradients g, std::int64_t round, std::int64_t matrices, cudaStream_t stream,
                       const uint4* maybe_back_mix = nullptr) const;
  [[nodiscard]] bool takes_back(const Arguments& a) const { return own && sm90::mix_product_back(a.M, a.causal); }
  void launch_sum(const Arguments& a, const Gradients& g, std::int64_t heads, std::int64_t matrices,
                  cudaStream_t stream) const;
};

// dmix from maybe_whole.
void launch_mix_fold(const Gradients& g, std::int64_t matrices, cudaStream_t stream);

}  // namespace mhla::sm80
