// Sums over all pairs of tokens of a head, of 64 queries or 64 keys at a time by a warpgroup: the products of
// bidirectional_backward_sm90_heads.cuh. Nothing here touches memory but parts of dmix.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_short.cuh"
#include "mhla/kernels/common/cuda/sm90_ring.cuh"
#include "mhla/kernels/common/cuda/warpgroup_narrow.cuh"

namespace mhla::sm90 {

inline constexpr int kMaxSquares = kMaxPairTiles / 4;  // of 64 tokens

// Where relu is flat: a byte for 8 columns of a row.
using FlatBits = std::uint8_t[kMaxPairTiles * 16][8];

// Shared memory after the six panels.
struct HeadSums {
  PairTable table;
  float z[kMaxPairTiles][64];       // of tiles of keys
  float mixed[kMaxPairTiles][64];   // z~ of tiles of queries, each for the warp that has them
  FlatBits q_flat, k_flat[2];       // k of even and odd heads
  bool whole;                       // all tiles have 16 tokens
  std::uint64_t done[kMaxSquares];  // barriers: everyone is done with 64 rows of q and dout,
  std::uint64_t summed, weighed;    // z is there, w and c are there
};

// threadIdx.x, read where it is needed: everything derived from it would otherwise stay in registers from head to head.
__device__ inline int thread_here() {
  const int thread = thread_now();
  __builtin_assume(thread >= 0 && thread < kMaxSquares * 128);  // division is a shift
  return thread;
}

// x, but the compiler does not know that: it computes what follows from x again instead of keeping it in registers.
__device__ inline int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Arrives for a warp, kWarpArrivals times: everything it did before is seen by those who wait.
__device__ inline void warp_arrive(std::uint32_t barrier) {
  __syncwarp();
  if (thread_here() % 32 < kWarpArrivals) barrier_arrive(barrier);
}

// Panels of head n of a block of threads.
struct HeadPanels {
  char *q, *dout, *k, *v;
  char *next_dout, *next_v;  // before the next head is fetched, dq passes through next_dout on its way out
  __device__ HeadPanels(char* shared, int n)
      : q(slot(shared, n % 4)),
        dout(slot(shared, (n + 1) % 4)),
        k(slot(shared, (n + 3) % 4)),
        v(slot(shared, 4 + n % 2)),
        next_dout(slot(shared, (n + 2) % 4)),
        next_v(slot(shared, 4 + (n + 1) % 2)) {}
  __device__ static char* slot(char* shared, int i) { return shared + i * ShortPanels::kBytes; }
};

// z of the tile of keys of this warp.
__device__ inline void sum_keys(const char* keys, int tiles, HeadSums& sums) {
  const int thread = thread_here(), tile = thread / 32, column = thread % 32 * 2;
  if (tile < tiles) {
    float2 sum = {};
#pragma unroll
    for (int row = 0; row < 16; ++row) {
      const float2 x = unpack_bf16(
          *reinterpret_cast<const std::uint32_t*>(keys + panel_offset(tile * 16 + row, column / 8) + column % 8 * 2));
      sum.x += x.x, sum.y += x.y;
    }
    *reinterpret_cast<float2*>(&sums.z[tile][column]) = sum;
  }
  warp_arrive(shared_address(&sums.summed));
}
// z~ of the tile of this warp, for this warp.
__device__ inline void mix_sums(HeadSums& sums, int tiles, int own) {
  const int column = thread_here() % 32 * 2;
  float2 sum = {};
#pragma unroll 8
  for (int b = 0; b < tiles; ++b) {
    const float m = sums.table.mix[own][b];
    const float2 z = *reinterpret_cast<const float2*>(&sums.z[b][column]);
    sum.x = fmaf(m, z.x, sum.x), sum.y = fmaf(m, z.y, sum.y);
  }
  *reinterpret_cast<float2*>(&sums.mixed[own][column]) = sum;
  __syncwarp();
}

// a = sum m x k~ of the 64 queries of a warpgroup, and z~. x of the next 64 keys is made while those before are added.
// Heads of a block of threads have parity 0 and 1 in turn.
__device__ inline void sum_queries(const HeadPanels& panels, HeadSums& sums, int square, int tiles, int parity,
                                   Accumulator& acc) {
  const PairTable& table = sums.table;
  const int own = square * 4 + thread_here() / 32 % 4, rows = panel_rows(tiles);
  const std::uint64_t k = panel_descriptor(shared_address(panels.k)), v = panel_descriptor(shared_address(panels.v));
  std::uint32_t dout[4][4], weights[4][4];
  load_panel_rows<1>(dout, shared_address(panels.dout + square * 64 * kPanelRowBytes));
  const auto multiply = [&](Accumulator& x, int j) {  // dout stays in registers: half the traffic of shared memory
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_panel_columns(x, dout[step], v + j * 4 * kNextRows + step * kNextColumns, step > 0);
    }
  };
  const auto weigh = [&](Accumulator& x, int j) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const float m = table.mix[own][4 * j + step];
      each_of_step(step, [&](int tile, int i, int) { x[tile][i] *= m; });
      if (!sums.whole) {
        const int count = table.counts[4 * j + step];
        each_of_step(step, [&](int tile, int i, int column) { x[tile][i] = column < count ? x[tile][i] : 0.0f; });
      }
    }
  };
  {
    Accumulator x;
    warpgroup_begin();
    multiply(x, 0);
    warpgroup_commit();
    sum_keys(panels.k, tiles, sums);
    warpgroup_wait<0>();
    settle_sums(x);
    weigh(x, 0);
    square_fragments(x, weights);
  }
  settle_sums(acc);
  for (int j = 1; j * 64 < rows; ++j) {
    Accumulator x;
    warpgroup_begin();
    multiply(x, j);
    warpgroup_commit();
    multiply_square_rows(acc, weights, k + (j - 1) * 4 * kNextRows);
    warpgroup_commit();
    warpgroup_wait<1>();
    settle_sums(x);
    weigh(x, j);
    warpgroup_wait<0>();
    settle_sums(acc);
    square_fragments(x, weights);
  }
  warpgroup_begin();
  multiply_square_rows(acc, weights, k + (rows / 64 - 1) * 4 * kNextRows);
  warpgroup_commit();
  barrier_wait(shared_address(&sums.summed), parity);
  mix_sums(sums, tiles, own);
  warpgroup_wait<0>();
  settle_sums(acc);
}

// What the products of 64 keys have in common.
struct KeySquare {
  std::uint64_t k, v, q, dout;  // panels as products want them
  int square;

  __device__ KeySquare(const HeadPanels& panels, int number)
      : k(panel_descriptor(shared_address(panels.k + number * 64 * kPanelRowBytes))),
        v(panel_descriptor(shared_address(panels.v + number * 64 * kPanelRowBytes))),
        q(panel_descriptor(shared_address(panels.q))),
        dout(panel_descriptor(shared_address(panels.dout))),
        square(number) {}
  __device__ int own() const { return square * 4 + thread_here() / 32 % 4; }  // tile of this warp

  // s and x of 16 queries, columns 16 step to 16 step + 15, to m w s and m w (x + c); their share of dmix.
  __device__ float weigh(const HeadSums& sums, int step, int queries, NarrowSums& s, NarrowSums& x) const {
    const PairTable& table = sums.table;
    const int lane = thread_here() % 32;
    const float m = table.mix[queries][own()];  // 0 behind the last tile
    if (!sums.whole) {
      const int count = table.counts[queries];
      each_of_step(step, [&](int tile, int i, int column) {
        s[tile][i] = column < count ? s[tile][i] : 0.0f, x[tile][i] = column < count ? x[tile][i] : 0.0f;
      });
    }
    float d_mix = 0;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {  // w and c of two neighbours
      const float4 wc = *reinterpret_cast<const float4*>(table.weights + queries * 16 + tile * 8 + lane % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float &y = x[2 * step + tile][i], &score = s[2 * step + tile][i];
        const float w = i % 2 ? wc.z : wc.x, c = i % 2 ? wc.w : wc.y;
        const float r = w * (y + c);
        d_mix = fmaf(score, r, d_mix);
        y = m * r, score *= m * w;
      }
    }
    return d_mix;
  }
};

// dk and dv of the 64 keys of a warpgroup; dmix of the head to `maybe_parts` [tiles][tiles]. Of 32 queries at a time s
// and x are made and weighed, then added. (Warpgroups that hand their products to the tensor cores in turn are no
// faster than those left alone.) Calls copy(half) when they are weighed, and done(j) when queries 64 j to 64 j + 63 are
// not read any more.
template <class Copy, class Done>
__device__ inline void sum_squares(HeadSums& sums, const HeadPanels& panels, int square, int tiles, int parity,
                                   float* maybe_parts, Accumulator& dk, Accumulator& dv, const Copy& copy,
                                   const Done& done) {
  const KeySquare keys(panels, square);
  const int halves = panel_rows(tiles) / 32;
  settle_sums(dk), settle_sums(dv);
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    NarrowSums s, x;
    const std::uint64_t rows = half * 2 * kNextRows;
    warpgroup_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const std::uint64_t columns = step * kNextColumns;
      multiply_half_panels(s, keys.k + columns, keys.q + rows + columns, step > 0);
      multiply_half_panels(x, keys.v + columns, keys.dout + rows + columns, step > 0);
    }
    warpgroup_commit();
    if (half == 0) barrier_wait(shared_address(&sums.weighed), parity);
    warpgroup_wait<0>();
    settle_sums(s), settle_sums(x);
    float d_mix[4] = {};
    std::uint32_t to_keys[2][4], to_values[2][4];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      d_mix[step] = keys.weigh(sums, step, 2 * half + step, s, x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int tile = 2 * step + i / 2;
        to_keys[step][i] = pack_bf16(x[tile][i % 2 * 2], x[tile][i % 2 * 2 + 1]);
        to_values[step][i] = pack_bf16(s[tile][i % 2 * 2], s[tile][i % 2 * 2 + 1]);
      }
    }
    warpgroup_begin();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      multiply_panel_rows(dk, to_keys[step], keys.q + rows + step * kNextRows);
      multiply_panel_rows(dv, to_values[step], keys.dout + rows + step * kNextRows);
    }
    warpgroup_commit();
    if (maybe_parts != nullptr) {
      const float sum = four_sums(d_mix);
      const int lane = thread_here() % 32, queries = 2 * half + lane, own = keys.own();
      if (lane < 2 && queries < tiles && own < tiles) maybe_parts[queries * tiles + own] = sum;
    }
    copy(half);
    warpgroup_wait<0>();
    settle_sums(dk), settle_sums(dv);
    if (half % 2 == 1) done(half / 2);
  }
}

}  // namespace mhla::sm90
