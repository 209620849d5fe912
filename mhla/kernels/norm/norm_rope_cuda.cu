// A row lies in the registers of a group of threads (row_groups.cuh): both channels of a pair belong to one thread, so
// that turning them costs no exchange. Short rows come four or two at a time, or too few bytes would be under way.
// Blocks of threads walk over the rows, weights stay in registers. Traffic: a row in and out once, and its line of the
// table, which all heads share.
#include <algorithm>

#include "mhla/core/cuda_check.h"
#include "mhla/kernels/common/cuda/tokens.cuh"
#include "mhla/kernels/norm/norm_rope_job.h"
#include "mhla/kernels/norm/row_groups.cuh"

namespace mhla {
namespace {

using namespace rows;

enum class After { kNothing, kTurn, kSilu };

template <class S>
constexpr int kRowsAtOnce = S::kGroup > 32 || S::kPieces > 2 ? 1 : 4 / S::kPieces;

// Channels of this thread through the feature map, turned by their line of the table.
template <class S>
__device__ inline void turn_row(const NormRopeJob& p, std::int64_t row, const int (&line_at)[S::kPieces],
                                Values<S>& x) {
  const std::int64_t line = row % p.tokens * (p.head / 2);
  each_piece<S>(p.X, [&](int piece, int) {
    const float2 cos = *reinterpret_cast<const float2*>(p.cos + line + line_at[piece]);
    const float2 sin = *reinterpret_cast<const float2*>(p.sin + line + line_at[piece]);
    float(&four)[4] = x[piece];
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = cuda::feature(p.map, four[i]);
    const float a = four[0], b = four[1], c = four[2], d = four[3];
    four[0] = a * cos.x - b * sin.x, four[1] = a * sin.x + b * cos.x;
    four[2] = c * cos.y - d * sin.y, four[3] = c * sin.y + d * cos.y;
  });
}

template <class S, After kAfter>
__global__ void __launch_bounds__(kThreads) norm_rope_kernel(NormRopeJob p) {
  constexpr int kAtOnce = kRowsAtOnce<S>;
  __shared__ GroupShared shared;
  int turn = 0;
  Values<S> weight;
  load<S>(p.weight, 0, p.X, weight);
  int line_at[S::kPieces] = {};  // of a piece's two pairs in a line of the table
  if constexpr (kAfter == After::kTurn)
    each_piece<S>(p.X, [&](int piece, int column) { line_at[piece] = column % p.head / 2; });
  const float share = 1.0f / static_cast<float>(p.X);
  const std::int64_t groups = static_cast<std::int64_t>(gridDim.x) * S::kGroups;
  const std::int64_t own = static_cast<std::int64_t>(blockIdx.x) * S::kGroups + group<S>();
#pragma unroll 1
  for (std::int64_t first = own * kAtOnce; first < p.rows; first += groups * kAtOnce) {
    Values<S> x[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) load<S>(p.x, min(first + r, p.rows - 1), p.X, x[r]);
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      float squares = 0;
      each<S>([&](int piece, int i) { squares = fmaf(x[r][piece][i], x[r][piece][i], squares); });
      const float factor = rsqrtf(group_sum<S>(squares, shared, turn) * share + p.eps);
      each<S>([&](int piece, int i) { x[r][piece][i] *= factor * weight[piece][i]; });
      if constexpr (kAfter == After::kSilu)
        each<S>([&](int piece, int i) { x[r][piece][i] = x[r][piece][i] / (1.0f + __expf(-x[r][piece][i])); });
      if (first + r >= p.rows) continue;
      if constexpr (kAfter == After::kTurn) turn_row<S>(p, first + r, line_at, x[r]);
      store<S>(p.y, first + r, p.X, x[r]);
    }
  }
}

// As many as a large card runs at a time: more would only read the weights again.
constexpr std::int64_t kNormRopeBlocks = 1024;

}  // namespace

void norm_rope_cuda(const NormRopeJob& job) {
  with_token(job.X, [&](auto token) {
    using S = decltype(token);
    auto* kernel = job.cos != nullptr ? &norm_rope_kernel<S, After::kTurn>
                   : job.silu         ? &norm_rope_kernel<S, After::kSilu>
                                      : &norm_rope_kernel<S, After::kNothing>;
    constexpr std::int64_t kRows = static_cast<std::int64_t>(S::kGroups) * kRowsAtOnce<S>;
    const auto blocks = static_cast<unsigned>(std::min((job.rows + kRows - 1) / kRows, kNormRopeBlocks));
    kernel<<<blocks, kThreads, 0, stream_of(job.stream)>>>(job);
    check_launch("norm_rope_kernel");
  });
}

}  // namespace mhla
