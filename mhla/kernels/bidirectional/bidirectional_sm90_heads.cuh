// Forward of 193 to 256 tokens on Hopper with heads of 33 to 64, in tiles that are boxes of 16 tokens: pairs of tokens
// as in bidirectional_sm90_short.cuh and with the same bits, by warpgroups with roles. A block of threads takes heads
// one after the other. Shared memory holds two heads in units of 64 rows of q, k or v. One thread asks the copy engine
// for units, as far ahead as they are empty, and two warps send k through the map, in place. Two warpgroups multiply,
// each 128 queries as two squares in turn: while one waits for its products the other weighs scores, and neither waits
// for a whole head. q stays in registers, denominators come out of the products with values, and outputs leave as
// boxes.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm90_head_units.cuh"
#include "mhla/kernels/common/cuda/warpgroup_wide.cuh"

namespace mhla::sm90 {

// 64 queries of a warpgroup, and what is in flight of them.
struct QuerySquare {
  std::uint32_t q[4][4], weights[4][4];
  Accumulator scores;
  SumsAndRows out;  // and the denominators

  // Begin the products with 64 keys: scores, and what the keys before them add to the output.
  __device__ void multiply_scores(const char* keys) {
    const std::uint64_t k = panel_descriptor(shared_address(keys));
#pragma unroll
    for (int step = 0; step < 4; ++step) multiply_panel_columns(scores, q[step], k + step * kNextColumns, step > 0);
  }
  __device__ void multiply_weights(const char* values, const char* ones, bool add) {
    const std::uint64_t v = beside_ones(shared_address(values), shared_address(ones));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      multiply_rows_and_ones(out, weights[step], v + step * kNextRowsBesideOnes, add || step > 0);
    }
  }
  __device__ void settle() { settle_sums(scores), settle_sums(out.sums), settle_sums(out.rows); }
};

// A warpgroup that multiplies: squares 2 group and 2 group + 1 of the queries of all heads.
template <class S>
struct HeadProducts {
  const Arguments& p;
  const HeadBoxes& boxes;
  const HeadMemory& memory;
  int tiles, group;
  int lane = threadIdx.x % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;

  // Lane 16 t + b: the weight of tile b of the keys for the tile of this warp in square t.
  __device__ float mix_of(const PairShape& shape, int head) const {
    const int i = (2 * group + lane / 16) * 4 + warp, b = lane % 16;
    if (i >= tiles || b >= tiles) return 0.0f;
    return p.mix[head * p.mix_head + shape.tiles_per_block.divide(i) * p.mix_row +
                 shape.tiles_per_block.divide(b) * p.mix_column];
  }

  __device__ void release(std::uint32_t barrier) const {
    __syncwarp();
    if (lane < kWarpArrivals) barrier_arrive(barrier);
  }

  // Square t of the queries of a head: its first scores.
  __device__ void begin(QuerySquare& x, int t, const HeadSlot& at) const {
    const int unit = kRowsOfQ + 2 * group + t;
    barrier_wait(at.full(unit), at.parity);
    load_panel_rows<1>(x.q, shared_address(at.unit(unit)));
#pragma unroll
    for (int step = 0; step < 4; ++step) feature_fragment(S::map(p), x.q[step]);
    release(at.empty(unit));
    if (t == 0) barrier_wait(at.mapped(0), at.parity);
    warpgroup_begin();
    x.multiply_scores(at.unit(kRowsOfK));
    warpgroup_commit();
  }

  // Its scores with square j of the keys to weights.
  __device__ void weigh(QuerySquare& x, float mix, int t, int j) const {
    Accumulator s;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const float m = lane_value(mix, t * 16 + 4 * j + step);
      each_of_step(step, [&](int tile, int i, int) { s[tile][i] = x.scores[tile][i] * m; });
    }
    if (4 * j + 4 > tiles) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const bool there = 4 * j + step < tiles;
        each_of_step(step, [&](int tile, int i, int) { s[tile][i] = there ? s[tile][i] : 0.0f; });
      }
    }
    square_fragments(s, x.weights);
  }

  // Its outputs, on their way to memory.
  __device__ void write(const QuerySquare& x, int t, const HeadPlace& to) const {
    const float factors[2] = {output_factor(p, x.out.rows[0]), output_factor(p, x.out.rows[2])};
    const int own = (2 * group + t) * 4 + warp;
    char* const rows = memory.shared + HeadMemory::kOut + ((group * 4 + warp) * 2 + t) * HeadMemory::kOutRows;
    if (lane == 0) wait_boxes_read_but<1>();  // what left from here before
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      std::uint32_t y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&c)[4] = x.out.sums[j + i / 2];
        y[i] = pack_bf16(c[i % 2 * 2] * factors[i % 2], c[i % 2 * 2 + 1] * factors[i % 2]);
      }
      store_matrices(shared_address(rows + panel_offset(lane % 16, j + lane / 16)), y[0], y[1], y[2], y[3]);
    }
    publish_shared();
    __syncwarp();
    if (lane == 0) {
      const BoxPlace at(boxes.places[own]);
      store_grid_box(boxes.out, shared_address(rows), at.x, at.y, to.head, to.batch);
      commit_boxes();
    }
  }
};

template <class S>
__device__ inline void multiply_heads(const Arguments& p, const HeadBoxes& boxes, const PairShape& shape,
                                      const HeadMemory& memory, int heads, int group) {
  const HeadProducts<S> products{p, boxes, memory, shape.tiles, group};
  const char* const ones = memory.shared + HeadMemory::kOnes;
  constexpr int last = kUnitSquares - 1;
  QuerySquare all[2];
  float mix = products.mix_of(shape, HeadPlace(p, shape, blockIdx.x).head);
  int n = 0;
  for (int row = blockIdx.x; row < heads; ++n) {
    const HeadSlot here(memory, n);
    const HeadPlace place(p, shape, row);
    products.begin(all[0], 0, here), products.begin(all[1], 1, here);
    // What is in flight of square t: its scores with keys j, and what keys j - 1 add to its sums.
#pragma unroll
    for (int j = 0; j < kUnitSquares; ++j) {
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        warpgroup_wait<1>();
        all[t].settle();
        if (t == 1) {
          products.release(here.empty(kRowsOfK + j));
          if (j > 0) products.release(here.empty(kRowsOfV + j - 1));
        }
        products.weigh(all[t], mix, t, j);
        if (t == 0) {
          if (j < last) barrier_wait(here.mapped(j + 1), here.parity);
          barrier_wait(here.full(kRowsOfV + j), here.parity);
        }
        warpgroup_begin();
        if (j < last) all[t].multiply_scores(here.unit(kRowsOfK + j + 1));
        all[t].multiply_weights(here.unit(kRowsOfV + j), ones, j > 0);
        warpgroup_commit();
      }
    }
    row += gridDim.x;
    const float next_mix = row < heads && p.mix_head ? products.mix_of(shape, HeadPlace(p, shape, row).head) : mix;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      t == 0 ? warpgroup_wait<1>() : warpgroup_wait<0>();
      all[t].settle();
      if (t == 1) products.release(here.empty(kRowsOfV + last));
      products.write(all[t], t, place);
    }
    mix = next_mix;
  }
  if (products.lane == 0) wait_boxes_read_but<0>();
}

template <class S>
__global__ void __launch_bounds__(kForwardThreads, 1)
    head_box_kernel(const __grid_constant__ Arguments p, const __grid_constant__ HeadBoxes boxes, PairShape shape,
                    int heads) {
  extern __shared__ __align__(1024) char shared[];
  const HeadMemory memory{shared};
  const int group = warpgroup_index(), warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    if (shared_address(shared) % kPanelAlign != 0) __trap();
    init_full_barriers(memory);
    after_previous();
    const HeadPlace from(p, shape, blockIdx.x);
    for (int i = 0; i < kFirstUnits; ++i) bring_unit(boxes, from, HeadSlot(memory, 0), unit_of_order(i));
  } else if (threadIdx.x == 32) {
    expect_boxes(boxes.q), expect_boxes(boxes.k), expect_boxes(boxes.v), expect_boxes(boxes.out);
  } else if (threadIdx.x == 64) {
    init_other_barriers(memory);
  }
  __syncwarp();
  for (int i = threadIdx.x; i < 16 * kPanelRowBytes / 4; i += kForwardThreads) {
    reinterpret_cast<std::uint32_t*>(shared + HeadMemory::kOnes)[i] = 0x3f803f80u;
  }
  publish_shared();
  __syncthreads();
  after_previous();
  if (group == 0) {
    keep_registers<40>();
    if (threadIdx.x == 0) bring_heads(p, boxes, shape, memory, heads);
    if (warp >= 2) map_heads<S>(p, memory, heads);
  } else {
    take_registers<232>();
    multiply_heads<S>(p, boxes, shape, memory, heads, group - 1);
  }
}

}  // namespace mhla::sm90
