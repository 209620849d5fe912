// Short sequences on Hopper with heads of 33 to 64: all pairs of tokens as in bidirectional_sm80_pairs.cuh, with
// products of warpgroups (common/cuda/warpgroup.cuh). Both sides lie in shared memory as panels, 64 tokens of one side
// with 64 of the other make an Accumulator: its tiles of 16 x 16 belong to one pair of blocks each.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm80_pairs.cuh"
#include "mhla/kernels/common/cuda/warpgroup.cuh"

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

constexpr int panel_rows(int tiles) { return (tiles + 3) / 4 * 64; }

// What a thread of kThreads moves of every panel of kRows rows: piece c of every (kThreads / 8)-th row.
template <int kThreads, int kRows>
struct PanelMover {
  static constexpr int kStep = kThreads / 8, kCount = kRows / kStep;
  static_assert(kStep % 8 == 0);  // pieces of all rows of a thread are swizzled alike
  int token[kCount];              // -1: none
  int c, offset;

  __device__ explicit PanelMover(const PairTable& table)
      : c(threadIdx.x % 8), offset(panel_offset(threadIdx.x / 8, c)) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) token[i] = table.tokens[i * kStep + threadIdx.x / 8];
  }
  // Rows of X values to a panel, zeros in columns past X and where there is no token.
  __device__ void copy(const Bf16* x, std::int64_t stride, int X, char* panel) const {
    const std::uint32_t to = shared_address(panel) + offset;
    const Bf16* piece = x + (c * 8 < X ? c * 8 : 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      copy16(to + i * kStep * kPanelRowBytes, piece + max(token[i], 0) * stride, token[i] >= 0 && c * 8 < X);
    }
  }
  // phi of what this thread copied itself, in place.
  __device__ void map(FeatureMap map, int X, char* panel) const {
    if (map == FeatureMap::kIdentity || c * 8 >= X) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      auto* at = reinterpret_cast<uint4*>(panel + offset + i * kStep * kPanelRowBytes);
      uint4 y = *at;
      y.x = feature_pair(map, y.x), y.y = feature_pair(map, y.y);
      y.z = feature_pair(map, y.z), y.w = feature_pair(map, y.w);
      if (token[i] >= 0) *at = y;
    }
  }
};

// The 16 rows of a warp, X values each, to the tokens of its tile, through 16 rows of a panel of its own: lines are
// written whole. Rows times `factors`; kGradient: through the slope of the map at x.
template <bool kGradient>
__device__ inline void write_square_rows(const Accumulator& acc, const float (&factors)[2], const PairTable& table,
                                         int tile, char* own, Bf16* to, std::int64_t stride, int X,
                                         FeatureMap map = FeatureMap::kIdentity, const Bf16* x = nullptr,
                                         std::int64_t x_stride = 0) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    std::uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&c)[4] = acc[j + i / 2];
      y[i] = pack_bf16(c[i % 2 * 2] * factors[i % 2], c[i % 2 * 2 + 1] * factors[i % 2]);
    }
    store_matrices(shared_address(own + panel_offset(lane % 16, j + lane / 16)), y[0], y[1], y[2], y[3]);
  }
  __syncwarp();
  const int c = lane % 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 4 + lane / 8, token = table.tokens[tile * 16 + row];
    if (token < 0 || c * 8 >= X) continue;
    uint4 y = *reinterpret_cast<const uint4*>(own + panel_offset(row, c));
    if constexpr (kGradient) {
      const uint4 at = *reinterpret_cast<const uint4*>(x + token * x_stride + c * 8);
      y.x = through_slope(map, at.x, y.x), y.y = through_slope(map, at.y, y.y);
      y.z = through_slope(map, at.z, y.z), y.w = through_slope(map, at.w, y.w);
    }
    *reinterpret_cast<uint4*>(to + token * stride + c * 8) = y;
  }
  __syncwarp();
}

// Tiles 4 j to 4 j + 3 have 16 tokens each.
__device__ inline bool whole_square(const PairTable& table, int j) {
  const int* counts = table.counts + 4 * j;
  return counts[0] + counts[1] + counts[2] + counts[3] == 64;
}

// Forward: a warpgroup per 64 queries, rounded up to a power of two, 128 registers a thread.
constexpr int short_groups(int rows) { return rows <= 64 ? 1 : rows <= 128 ? 2 : 4; }
constexpr int short_shared_bytes(int groups) {
  return 2 * kPanelAlign + 2 * 3 * groups * 64 * kPanelRowBytes + static_cast<int>(sizeof(PairTable));
}

// out of the 64 queries of a warpgroup.
template <class S>
__device__ inline void short_readout(const Arguments& p, const PairHead& work, char* queries, const char* keys,
                                     const char* values, const char* ones, int square) {
  const PairTable& table = work.table;
  const int rows = panel_rows(work.shape.tiles), own = square * 4 + threadIdx.x / 32 % 4;  // tile of this warp
  const std::uint64_t q = panel_descriptor(shared_address(queries + square * 64 * kPanelRowBytes));
  const std::uint64_t k = panel_descriptor(shared_address(keys)), v = panel_descriptor(shared_address(values));
  const std::uint64_t one = panel_descriptor(shared_address(ones));
  const float* mix = table.mix[own];
  Accumulator acc = {};
  float den[4] = {};
  std::uint32_t weights[4][4];
  const auto weigh = [&](Accumulator& s, int j) {
    const bool whole = whole_square(table, j);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const float m = mix[4 * j + step];
      each_of_step(step, [&](int tile, int i, int) { s[tile][i] *= m; });
      if (!whole) {
        const int count = table.counts[4 * j + step];
        each_of_step(step, [&](int tile, int i, int column) { s[tile][i] = column < count ? s[tile][i] : 0.0f; });
      }
    }
  };
  const auto add_values = [&](int j) {
    multiply_square_rows(acc, weights, v + j * 4 * kNextRows);
#pragma unroll
    for (int step = 0; step < 4; ++step) add_row_sums(den, weights[step], one);
  };
  {
    Accumulator s;
    warpgroup_begin();
    multiply_squares(s, q, k);
    warpgroup_commit();
    warpgroup_wait<0>();
    weigh(s, 0);
    square_fragments(s, weights);
  }
  settle_sums(acc);
  for (int j = 1; j * 64 < rows; ++j) {  // the scores of one square of keys while those before weigh values
    Accumulator s;
    warpgroup_begin();
    multiply_squares(s, q, k + j * 4 * kNextRows);
    warpgroup_commit();
    add_values(j - 1);
    warpgroup_commit();
    warpgroup_wait<1>();
    weigh(s, j);
    warpgroup_wait<0>();
    settle_sums(acc);
    square_fragments(s, weights);
  }
  warpgroup_begin();
  add_values(rows / 64 - 1);
  warpgroup_commit();
  warpgroup_wait<0>();
  settle_sums(acc);
  warpgroup_barrier(square);  // nobody reads these queries any more
  const float factors[2] = {output_factor(p, den[0]), output_factor(p, den[2])};
  write_square_rows<false>(acc, factors, table, own, queries + own * 16 * kPanelRowBytes,
                           p.out.at(work.batch, work.head), p.out.token, S::E(p));
}

// Heads one after the other, the next one on its way.
template <class S, int kGroups>
__global__ void __launch_bounds__(kGroups * 128, 4 / kGroups) short_kernel(Arguments p, PairShape shape, int heads) {
  after_previous();
  extern __shared__ char unaligned[];  // [2] queries, keys, values; ones; table
  constexpr int panel = kGroups * 64 * kPanelRowBytes;
  const int group = warpgroup_index();
  char *stages = aligned_panels(unaligned), *ones = stages + 6 * panel;
  PairHead work(p, shape, ones + kPanelAlign);
  work.fill_tokens();
  for (int i = threadIdx.x; i < kPanelAlign / 4; i += kGroups * 128) {
    reinterpret_cast<std::uint32_t*>(ones)[i] = 0x3f803f80u;
  }
  const PanelMover<kGroups * 128, kGroups * 64> mover(work.table);
  const auto fetch = [&](int row, int slot) {
    if (row < heads) {
      char* to = stages + slot * 3 * panel;
      PairHead next = work;
      next.enter(row);
      const int kv = p.group == 1 ? next.head : next.head / p.group;
      mover.copy(p.q.at(next.batch, next.head), p.q.token, S::D(p), to);
      mover.copy(p.k.at(next.batch, kv), p.k.token, S::D(p), to + panel);
      mover.copy(p.v.at(next.batch, kv), p.v.token, S::E(p), to + 2 * panel);
    }
    copy_commit();
  };
  fetch(blockIdx.x, 0);
  int slot = 0;
  for (int row = blockIdx.x; row < heads; row += gridDim.x, slot ^= 1) {
    work.enter(row);
    if (row == blockIdx.x || p.mix_head) work.fill_mix(work.head);
    copy_wait<0>();
    char *queries = stages + slot * 3 * panel, *keys = queries + panel;
    mover.map(S::map(p), S::D(p), queries);
    mover.map(S::map(p), S::D(p), keys);
    publish_shared();
    __syncthreads();  // this head is there, and all are done with the one before
    fetch(row + gridDim.x, slot ^ 1);
    if (group * 64 < panel_rows(shape.tiles)) short_readout<S>(p, work, queries, keys, keys + panel, ones, group);
    if (p.mix_head) __syncthreads();  // the table changes with the head
  }
  copy_wait<0>();
}

}  // namespace mhla::sm90
