// Backward over all pairs of tokens, for short sequences (bidirectional_sm80_pairs.cuh). With s = q~_t k~_s, p = m s
// and
//   w_t = scale / den_t,  c_t = -(num_t . dout_t) / den_t,  r = w_t (dout_t . v_s + c_t)
// the gradients are dq~_t = sum_s m r k~_s, dk~_s = sum_t m r q~_t, dv_s = sum_t w_t p dout_t, dmix = sum s r. One
// kernel per query tile sums den and num . dout over the keys, then goes over them again for dq and dmix; one per key
// tile does dk and dv.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm80_pairs.cuh"
#include "mhla/kernels/common/cuda/sm80_backward.cuh"

namespace mhla::sm80 {

// The sum of x[lane % 4] over the lanes of a warp.
__device__ inline float four_sums(const float (&x)[4]) {
  const int lane = threadIdx.x;
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // of x[2 i + lane % 2] over two lanes
    const float sent = lane & 1 ? x[2 * i] : x[2 * i + 1];
    two[i] = (lane & 1 ? x[2 * i + 1] : x[2 * i]) + __shfl_xor_sync(0xffffffffu, sent, 1);
  }
  const float sent = lane & 2 ? two[0] : two[1];
  float sum = (lane & 2 ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, sent, 2);
  sum += __shfl_xor_sync(0xffffffffu, sum, 4);
  sum += __shfl_xor_sync(0xffffffffu, sum, 8);
  return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
}

// dq, dmix in parts [B H][tiles][tiles], w and c of every token [B H][tiles 16]. A warp takes a tile of queries at a
// time and goes over the keys twice.
template <class S>
__global__ void __launch_bounds__(kPairThreads, S::kRows >= 8 ? 1 : 2)
    query_pair_kernel(Arguments p, Gradients g, PairShape shape) {
  after_previous();
  extern __shared__ __align__(16) char shared[];
  PairWork<S> work(p, shape, shared);
  const PairTable& table = work.table;
  const int tiles = shape.tiles, kv = work.head / p.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int D = S::D(p), E = S::E(p), stages = (tiles + kPairStageTiles - 1) / kPairStageTiles;
  work.fill_tokens();
  work.fetch(p.k.at(work.batch, kv), p.k.token, p.v.at(work.batch, kv), p.v.token);
  work.fill_mix(work.head);
  for (int own = warp; own == warp || own < tiles; own += kPairWarps) {
    const TileRows rows(table, own, tiles);
    std::uint32_t q[1][S::kRows][4], dout[1][S::kRows][4];
    rows.load(q[0], p.q.at(work.batch, work.head), p.q.token, D);
    rows.load(dout[0], g.dout.at(work.batch, work.head), g.dout.token, E);
    map_fragments<S>(p, q[0]);
    const float* mix = table.mix[min(own, tiles - 1)];

    float den[2] = {}, dot[2] = {};  // of the two rows of this lane
    for (int stage = 0; stage < stages; ++stage) {
      if (own == warp) work.arrive(stage);
      work.each_tile(stage, [&](int, int tile, auto whole) {
        const int count = whole ? 16 : table.counts[tile];
        float s[1][2][4] = {}, x[1][2][4] = {};
        multiply_pairs<S, 1>(s, q, work.first + tile * 16 * S::kPitch, D);
        multiply_pairs<S, 1>(x, dout, work.second + tile * 16 * S::kPitch, E);
        const float m = mix[tile];
        each_pair([&](int t, int j, int column) {
          const float weighted = whole || column < count ? m * s[0][t][j] : 0.0f;
          den[j / 2] += weighted;
          dot[j / 2] = fmaf(weighted, x[0][t][j], dot[j / 2]);
        });
      });
    }
    if (own >= tiles) break;
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * tiles + own;
    float w[2], c[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = p.eps + quad_sum(den[half]), sum = quad_sum(dot[half]);
      w[half] = !rows.valid[half] ? 0.0f : p.normalized ? p.scale / total : p.scale;
      c[half] = rows.valid[half] && p.normalized ? -sum / total : 0.0f;
      if (lane % 4 == 0) g.weights[row * 16 + lane / 4 + half * 8] = {w[half], c[half]};
    }

    float acc[1][S::kColumns][4] = {};
    for (int stage = 0; stage < stages; ++stage) {
      float d_mix[kPairStageTiles] = {};
      work.each_tile(stage, [&](int i, int tile, auto whole) {
        const int count = whole ? 16 : table.counts[tile];
        float s[1][2][4] = {}, x[1][2][4] = {};
        const char* keys = work.first + tile * 16 * S::kPitch;
        multiply_pairs<S, 1>(s, q, keys, D);
        multiply_pairs<S, 1>(x, dout, work.second + tile * 16 * S::kPitch, E);
        const float m = mix[tile];
        each_pair([&](int t, int j, int column) {
          const float r = whole || column < count ? w[j / 2] * (x[0][t][j] + c[j / 2]) : 0.0f;
          d_mix[i] = fmaf(s[0][t][j], r, d_mix[i]);
          x[0][t][j] = m * r;
        });
        std::uint32_t a[1][4];
        pair_fragment(x[0], a[0]);
        multiply_values<S, 1>(acc, a, keys);
      });
      const float sum = four_sums(d_mix);
      const int tile = stage * kPairStageTiles + lane;
      if (lane < kPairStageTiles && tile < tiles) g.parts[row * tiles + tile] = sum;
    }
    if (g.dq.data == nullptr) continue;
    const float one[2] = {1.0f, 1.0f};  // w is in r
    rows.write<true>(acc[0], one, g.dq.at(work.batch, work.head), g.dq.token, D, S::map(p),
                     p.q.at(work.batch, work.head), p.q.token);
  }
}

// acc of one tile of keys over all queries in shared memory: left (the keys' side) with `right` gives the products,
// which times m w_t, `shifted` by c_t first, weigh the rows of `values`.
template <class S, bool kShifted>
__device__ inline void add_queries(PairWork<S>& work, bool arriving, float (&acc)[1][S::kColumns][4],
                                   const std::uint32_t (&left)[1][S::kRows][4], const char* right, int X,
                                   const char* values, int own) {
  const PairTable& table = work.table;
  for (int stage = 0; stage * kPairStageTiles < work.shape.tiles; ++stage) {
    if (arriving) work.arrive(stage);
    work.each_tile(stage, [&](int, int tile, auto) {
      float x[1][2][4] = {};
      multiply_pairs<S, 1>(x, left, right + tile * 16 * S::kPitch, X);
      const float m = table.mix[tile][min(own, work.shape.tiles - 1)];
      const float2* weights = table.weights + tile * 16;
      each_pair([&](int t, int j, int column) {  // queries that do not exist have w = 0
        const float2 wc = weights[column];
        x[0][t][j] = m * wc.x * (kShifted ? x[0][t][j] + wc.y : x[0][t][j]);
      });
      std::uint32_t a[1][4];
      pair_fragment(x[0], a[0]);
      multiply_values<S, 1>(acc, a, values + tile * 16 * S::kPitch);
    });
  }
}

// dk and dv, for the queries of one head of the group after the other.
template <class S>
__global__ void __launch_bounds__(kPairThreads, S::kRows >= 8 ? 1 : 2)
    key_pair_kernel(Arguments p, Gradients g, PairShape shape) {
  after_previous();
  extern __shared__ __align__(16) char shared[];
  PairWork<S> work(p, shape, shared);
  PairTable& table = work.table;
  const int tiles = shape.tiles, warp = threadIdx.x / 32, D = S::D(p), E = S::E(p);
  work.fill_tokens();
  work.fill_mix(work.head);
  // A head of queries at a time serves every tile of keys; with several heads the sums of a tile wait for all of them,
  // so the tiles of a warp take turns.
  const int turns = p.group == 1 ? 1 : (tiles + kPairWarps - 1) / kPairWarps;
  for (int turn = 0; turn < turns; ++turn) {
    const int begin = warp + turn * kPairWarps, end = turns == 1 ? max(tiles, begin + 1) : begin + 1;
    for (int own = begin; own < end; own += kPairWarps) {
      const TileRows rows(table, own, tiles);
      const float one[2] = {1.0f, 1.0f};
      float dk[1][S::kColumns][4] = {}, dv[1][S::kColumns][4] = {};
      for (int h = 0; h < p.group; ++h) {
        const int head = work.head * p.group + h;
        if (own == begin) {
          if (turn + h > 0) __syncthreads();  // all are done with the head before
          const std::int64_t at = (static_cast<std::int64_t>(work.batch) * p.Hkv * p.group + head) * tiles * 16;
          if (threadIdx.x < tiles * 16) table.weights[threadIdx.x] = g.weights[at + threadIdx.x];
          work.fetch(p.q.at(work.batch, head), p.q.token, g.dout.at(work.batch, head), g.dout.token);
        }
        std::uint32_t left[1][S::kRows][4];
        rows.load(left[0], p.v.at(work.batch, work.head), p.v.token, E);
        add_queries<S, true>(work, own == begin, dk, left, work.second, E, work.first, own);
        rows.load(left[0], p.k.at(work.batch, work.head), p.k.token, D);
        map_fragments<S>(p, left[0]);
        add_queries<S, false>(work, false, dv, left, work.first, D, work.second, own);
      }
      if (g.dk.data != nullptr) {
        rows.write<true>(dk[0], one, g.dk.at(work.batch, work.head), g.dk.token, D, S::map(p),
                         p.k.at(work.batch, work.head), p.k.token);
      }
      if (g.dv.data != nullptr) rows.write<false>(dv[0], one, g.dv.at(work.batch, work.head), g.dv.token, E);
    }
  }
}

// dmix: the parts of all pairs of tiles of two blocks, sequences, and heads that share the matrix.
template <int>
__global__ void __launch_bounds__(kMixSumThreads)
    pair_mix_kernel(Arguments p, Gradients g, int batches, PairShape shape) {
  after_previous();
  const int heads = p.Hkv * p.group, per = static_cast<int>(shape.tiles_per_block.divisor);
  sum_mix_gradient(p, g, [&](int matrix, int i, int b, int lane) {
    const std::int64_t head = std::int64_t{shape.tiles} * shape.tiles;
    const float* parts = g.parts + (p.mix_head ? matrix * head : 0) + i * per * shape.tiles + b * per;
    double sum = 0;
    for (int y = 0; y < per; ++y) {
      for (int x = 0; x < per; ++x) {
        sum += lane_sum(parts + y * shape.tiles + x, p.mix_head ? heads * head : head,
                        batches * (p.mix_head ? 1 : heads), lane);
      }
    }
    return sum;
  });
}

}  // namespace mhla::sm80
