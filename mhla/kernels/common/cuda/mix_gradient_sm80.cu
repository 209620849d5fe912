// dmix of the passes in phases: products of summaries in parts, their sum in a fixed order, and the fold of `extend`.
#include "mhla/kernels/common/cuda/sm80_mix_gradient.cuh"
#include "mhla/kernels/common/cuda/sm90_launches.cuh"

namespace mhla::sm80 {

// dmix[i][b] = dS~_i . S_b summed over units, in parts [matrices][splits][tiles][rows][rows]: a block of threads takes
// every `splits`-th piece of the columns. Tiles of 64 x 64, 16 rows per warp, or one tile of 16 x 16 or 32 x 32 where M
// is small: then several warps share rows, each with its part of the piece.
constexpr int product_columns(int rows) { return rows == 16 ? 256 : rows == 32 ? 128 : 64; }
constexpr int product_stage_bytes(int rows) { return 2 * rows * (product_columns(rows) * 2 + 16); }
constexpr int kProductStages = 3;

template <int kRows>
__global__ void __launch_bounds__(128) mix_product_kernel(Arguments p, Gradients g, int X, int splits) {
  after_previous();
  constexpr int kWidth = product_columns(kRows), kPitch = kWidth * 2 + 16;
  constexpr int kStage = 2 * kRows * kPitch, kTiles = kRows / 8;
  constexpr int kShares = 64 / kRows, kSteps = kWidth / 16 / kShares;  // warps of the same rows; steps of a warp
  extern __shared__ __align__(16) char shared[];                       // [kProductStages][dS~, S]
  const int tiles = (p.M + kRows - 1) / kRows, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row16 = warp % (kRows / 16) * 16, portion = warp / (kRows / 16);
  const int i0 = blockIdx.x / tiles * kRows, b0 = blockIdx.x % tiles * kRows, split = blockIdx.y;
  if (p.causal && b0 > i0) return;  // nobody reads it
  const int heads = p.mix_head ? p.Hkv : 1, head = blockIdx.z, pieces = (X + kWidth - 1) / kWidth;
  // Rows of units (one per part of the columns) of this launch that belong to the matrix: first, first + heads, ...
  const int rows = p.units / p.parts, start = p.mix_head ? (head - p.first_unit / p.parts % p.Hkv + p.Hkv) % p.Hkv : 0;
  const int all = start < rows ? (rows - start + heads - 1) / heads * p.parts * pieces : 0;
  const auto fetch = [&](int at, int slot) {
    if (at < all) {
      const int index = at / pieces, x0 = (at - index * pieces) * kWidth, part = index % p.parts;
      const int unit = (start + index / p.parts * heads) * p.parts + part;
      const std::int64_t base = static_cast<std::int64_t>(unit) * p.M * X + x0;
      const std::uint32_t to = shared_address(shared + slot * kStage);
      for (int c = threadIdx.x; c < 2 * kRows * (kWidth / 8); c += 128) {
        const int y = c / (kWidth / 8), x = c % (kWidth / 8) * 8, row = y % kRows + (y < kRows ? i0 : b0);
        const bool valid = row < p.M && x0 + x < X;
        const Bf16* from = (y < kRows ? p.mixed : p.summaries) + (valid ? base + std::int64_t{row} * X + x : 0);
        copy16(to + y * kPitch + x * 2, from, valid);
      }
    }
    copy_commit();
  };
  for (int i = 0; i < kProductStages - 1; ++i) fetch(split + i * splits, i);
  float acc[kTiles][4] = {};
  int slot = 0;
  for (int at = split; at < all; at += splits) {
    copy_wait<kProductStages - 2>();
    __syncthreads();
    fetch(at + (kProductStages - 1) * splits, slot == 0 ? kProductStages - 1 : slot - 1);
    const std::uint32_t stage = shared_address(shared + slot * kStage) + portion * kSteps * 32;
    const std::uint32_t left = stage + (row16 + lane % 16) * kPitch + lane / 16 * 16;
    const std::uint32_t right = stage + (kRows + lane % 8 + lane / 16 * 8) * kPitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t a[4];
      load_matrices(a, left + step * 32);
#pragma unroll
      for (int j = 0; j < kTiles; j += 2) {
        std::uint32_t b[4];
        load_matrices(b, right + j * 8 * kPitch + step * 32);
        multiply_add(acc[j], a, b[0], b[1]);
        multiply_add(acc[j + 1], a, b[2], b[3]);
      }
    }
    slot = slot + 1 == kProductStages ? 0 : slot + 1;
  }
  copy_wait<0>();
  float* to = g.parts + ((static_cast<std::int64_t>(head) * splits + split) * gridDim.x + blockIdx.x) * kRows * kRows;
  auto* sums = reinterpret_cast<float*>(shared);
  if constexpr (kShares > 1) __syncthreads();
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (row16 + lane / 4 + i / 2 * 8) * kRows + j * 8 + lane % 4 * 2 + i % 2;
      (kShares > 1 ? sums[portion * kRows * kRows + at] : to[at]) = acc[j][i];
    }
  }
  if constexpr (kShares > 1) {  // the shares, in the order of the warps
    __syncthreads();
    for (int i = threadIdx.x; i < kRows * kRows; i += 128) {
      float sum = sums[i];
      for (int share = 1; share < kShares; ++share) sum += sums[share * kRows * kRows + i];
      to[i] = sum;
    }
  }
}

// dmix from the parts of `rounds` launches. `heads`: sequences times kv heads.
template <bool kWhole, int kLanes>
__global__ void __launch_bounds__(kMixSumThreads)
    mix_sum_kernel(Arguments p, Gradients g, int rows, int splits, int rounds, std::int64_t round_size, int heads) {
  after_previous();
  const int tiles = (p.M + rows - 1) / rows, every = p.mix_head ? p.Hkv : 1;  // every so many heads use a matrix
  sum_mix_gradient<kWhole, kLanes>(p, g, [&](int matrix, int i, int b, int lane) {
    double sum = 0;
    if (!p.causal || b < i) {
      const std::int64_t split = std::int64_t{tiles} * tiles * rows * rows;
      const float* parts = g.parts + matrix * splits * split +
                           (std::int64_t{i} / rows * tiles + b / rows) * rows * rows + i % rows * rows + b % rows;
      for (int round = 0; round < rounds; ++round)
        sum += lane_sum<kLanes>(parts + round * round_size, split, splits, lane);
    } else if (b == i) {
      const std::int64_t head = std::int64_t{p.M} * g.diagonals;
      const float* parts = g.maybe_diagonal + matrix * head + std::int64_t{i} * g.diagonals;
      for (int d = 0; d < g.diagonals; ++d) sum += lane_sum<kLanes>(parts + d, every * head, heads / every, lane);
    }
    return sum;
  });
}

// dmix from maybe_whole; what row i >= L received goes to the entries that it reused (mix_index). A block of threads
// for every row but the last, and one for every entry of that.
constexpr int kMixFoldThreads = 256;
template <int>
__global__ void __launch_bounds__(kMixFoldThreads) mix_fold_kernel(Gradients g) {
  after_previous();
  const int matrix = blockIdx.y, M = g.whole_rows, last = g.L - 1, at = blockIdx.x, thread = threadIdx.x;
  const double* whole = g.maybe_whole + static_cast<std::int64_t>(matrix) * M * M;
  if (at < last) {
    for (int b = thread; b < g.L; b += kMixFoldThreads) {
      g.dmix_at(matrix, at, b) = at < M && b <= at ? static_cast<float>(whole[at * M + b]) : 0.0f;
    }
    return;
  }
  const int b = at - last;
  double sum = 0;
  for (int i = last + thread / 32; i < M; i += kMixFoldThreads / 32) {  // a warp a row
    const int end = i - last + b;                                       // all that is older shares the first entry
#pragma unroll 4
    for (int from = (b > 0 ? end : 0) + thread % 32; from <= end; from += 32) sum += whole[i * M + from];
  }
  __shared__ double sums[kMixFoldThreads];
  sums[thread] = sum;
  __syncthreads();
  for (int half = kMixFoldThreads / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  if (thread == 0) g.dmix_at(matrix, last, b) = static_cast<float>(sums[0]);
}

void MixGradient::launch_products(const Arguments& a, Gradients g, std::int64_t round, std::int64_t matrices,
                                  cudaStream_t stream, const uint4* maybe_back_mix) const {
  g.parts += round * round_size;
  if (own) return sm90::launch_mix_product(a, g, maybe_back_mix, splits, matrices, stream);
  const int rows = product_rows(a.M), tiles = (a.M + rows - 1) / rows,
            bytes = kProductStages * product_stage_bytes(rows);
  const auto kernel = rows == 16   ? mix_product_kernel<16>
                      : rows == 32 ? mix_product_kernel<32>
                                   : mix_product_kernel<64>;
  const dim3 grid(static_cast<unsigned>(tiles * tiles), static_cast<unsigned>(splits), static_cast<unsigned>(matrices));
  launch_next("mix_product_kernel", kernel, grid, 128, bytes, stream, a, g, a.D * a.E + a.D, static_cast<int>(splits));
}

void MixGradient::launch_sum(const Arguments& a, const Gradients& g, std::int64_t heads, std::int64_t matrices,
                             cudaStream_t stream) const {
  const bool whole = g.maybe_whole != nullptr;
  const std::int64_t L = whole ? a.M : g.L;
  const auto launch = [&](auto kernel, dim3 grid) {
    launch_next("mix_sum_kernel", kernel, grid, kMixSumThreads, 0, stream, a, g, product_rows(a.M),
                static_cast<int>(splits), static_cast<int>(rounds), round_size, static_cast<int>(heads));
  };
  constexpr int kMany = kMixSumLanes, kFew = kFewMixSumLanes;
  if (a.M > 64) {
    launch(whole ? mix_sum_kernel<true, kFew> : mix_sum_kernel<false, kFew>, mix_sum_grid<kFew>(L, matrices));
  } else {
    launch(whole ? mix_sum_kernel<true, kMany> : mix_sum_kernel<false, kMany>, mix_sum_grid<kMany>(L, matrices));
  }
}

void launch_mix_fold(const Gradients& g, std::int64_t matrices, cudaStream_t stream) {
  launch_next("mix_fold_kernel", mix_fold_kernel<0>,
              dim3(static_cast<unsigned>(2 * g.L - 1), static_cast<unsigned>(matrices)), kMixFoldThreads, 0, stream, g);
}

}  // namespace mhla::sm80
