// Backward over all pairs of tokens with products of warpgroups (bidirectional_sm90_short.cuh): one block of threads
// per kv head of a sequence does all of it. With x = dout_t . v_s and the names of
// bidirectional_backward_sm80_pairs.cuh
//   64 queries at a time: a_t = sum_s m x k~_s, den_t = eps + q~_t z~, num_t . dout_t = q~_t a_t,
//                         dq~_t = w (a_t + c z~)
//   64 keys at a time:    dk~_s = sum_t m w (x + c) q~_t, dv_s = sum_t m w s dout_t, dmix = sum s w (x + c)
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_backward_sm80_pairs.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_short.cuh"

namespace mhla::sm90 {

// Shared memory behind the four panels.
struct ShortSums {
  PairTable table;
  float z[kMaxPairTiles][64], mixed[kMaxPairTiles][64];  // of tiles of keys; z~ of tiles of queries
  uint4 out[kPairWarps][16 * kPanelRowBytes / 16];       // rows of a warp on their way out
};
constexpr int short_backward_shared_bytes() {
  return kPanelAlign + 4 * kMaxPairTiles * 16 * kPanelRowBytes + static_cast<int>(sizeof(ShortSums));
}

inline constexpr int kShortGroups = kPairThreads / 128;  // warpgroups of a block of threads

struct ShortPanels {
  char *q, *dout, *k, *v;
  static constexpr int kBytes = kMaxPairTiles * 16 * kPanelRowBytes;
  __device__ explicit ShortPanels(char* shared) : q(shared), dout(q + kBytes), k(dout + kBytes), v(k + kBytes) {}
};

// z~ of every tile of queries, from the keys in their panel. Ends with a barrier.
__device__ inline void mix_key_sums(const char* keys, int tiles, ShortSums& sums) {
  for (int at = threadIdx.x; at < tiles * 32; at += kPairThreads) {  // two columns of a tile
    const int tile = at / 32, column = at % 32 * 2;
    float2 sum = {};
    for (int row = tile * 16; row < tile * 16 + 16; ++row) {
      const float2 x =
          unpack_bf16(*reinterpret_cast<const std::uint32_t*>(keys + panel_offset(row, column / 8) + column % 8 * 2));
      sum.x += x.x, sum.y += x.y;
    }
    *reinterpret_cast<float2*>(&sums.z[tile][column]) = sum;
  }
  __syncthreads();
  for (int at = threadIdx.x; at < tiles * 64; at += kPairThreads) {
    float sum = 0;
    for (int b = 0; b < tiles; ++b) sum = fmaf(sums.table.mix[at / 64][b], sums.z[b][at % 64], sum);
    sums.mixed[at / 64][at % 64] = sum;
  }
  __syncthreads();
}

// dq of the 64 queries of a warpgroup; w and c to the table.
template <class S>
__device__ inline void short_queries(const Arguments& p, const Gradients& g, const PairHead& work, int head,
                                     const ShortPanels& panels, ShortSums& sums, int square, bool write) {
  PairTable& table = sums.table;
  const int tiles = work.shape.tiles, own = square * 4 + threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int D = S::D(p), rows = panel_rows(tiles);
  const std::uint64_t dout = panel_descriptor(shared_address(panels.dout + square * 64 * kPanelRowBytes));
  const std::uint64_t k = panel_descriptor(shared_address(panels.k)), v = panel_descriptor(shared_address(panels.v));
  Accumulator acc = {};
  std::uint32_t weights[4][4];
  const auto weigh = [&](Accumulator& x, int j) {
    const bool whole = whole_square(table, j);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const float m = table.mix[own][4 * j + step];
      each_of_step(step, [&](int tile, int i, int) { x[tile][i] *= m; });
      if (!whole) {
        const int count = table.counts[4 * j + step];
        each_of_step(step, [&](int tile, int i, int column) { x[tile][i] = column < count ? x[tile][i] : 0.0f; });
      }
    }
  };
  {
    Accumulator x;
    warpgroup_begin();
    multiply_squares(x, dout, v);
    warpgroup_commit();
    warpgroup_wait<0>();
    weigh(x, 0);
    square_fragments(x, weights);
  }
  settle_sums(acc);
  for (int j = 1; j * 64 < rows; ++j) {
    Accumulator x;
    warpgroup_begin();
    multiply_squares(x, dout, v + j * 4 * kNextRows);
    warpgroup_commit();
    multiply_square_rows(acc, weights, k + (j - 1) * 4 * kNextRows);
    warpgroup_commit();
    warpgroup_wait<1>();
    weigh(x, j);
    warpgroup_wait<0>();
    settle_sums(acc);
    square_fragments(x, weights);
  }
  warpgroup_begin();
  multiply_square_rows(acc, weights, k + (rows / 64 - 1) * 4 * kNextRows);
  warpgroup_commit();
  warpgroup_wait<0>();
  settle_sums(acc);

  const TileRows mine(table, own, tiles);
  const float* z = sums.mixed[own] + lane % 4 * 2;
  float w[2], c[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float den = 0, dot = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 zz = *reinterpret_cast<const float2*>(z + j * 8);
      const float2 q = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
          panels.q + panel_offset(own * 16 + lane / 4 + half * 8, j) + lane % 4 * 4));
      den = fmaf(q.x, zz.x, fmaf(q.y, zz.y, den));
      dot = fmaf(q.x, acc[j][2 * half], fmaf(q.y, acc[j][2 * half + 1], dot));
    }
    const float total = p.eps + quad_sum(den), sum = quad_sum(dot);
    w[half] = !mine.valid[half] ? 0.0f : p.normalized ? p.scale / total : p.scale;
    c[half] = mine.valid[half] && p.normalized ? -sum / total : 0.0f;
    if (lane % 4 == 0) table.weights[own * 16 + lane / 4 + half * 8] = {w[half], c[half]};
  }
  if (!write || g.dq.data == nullptr) return;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 zz = *reinterpret_cast<const float2*>(z + j * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      acc[j][2 * half] = fmaf(c[half], zz.x, acc[j][2 * half]);
      acc[j][2 * half + 1] = fmaf(c[half], zz.y, acc[j][2 * half + 1]);
    }
  }
  write_square_rows<true>(acc, w, table, own, reinterpret_cast<char*>(sums.out[threadIdx.x / 32]),
                          g.dq.at(work.batch, head), g.dq.token, D, S::map(p), p.q.at(work.batch, head), p.q.token);
}

// dk and dv of the 64 keys of a warpgroup, += over the queries of a head; dmix of the head to `maybe_parts`
// [tiles][tiles].
__device__ inline void short_keys(const PairHead& work, const ShortPanels& panels, const PairTable& table, int square,
                                  float* maybe_parts, Accumulator& dk, Accumulator& dv) {
  const int tiles = work.shape.tiles, own = square * 4 + threadIdx.x / 32 % 4, rows = panel_rows(tiles);
  const int lane = threadIdx.x % 32, last = min(own, tiles - 1);
  const std::uint64_t k = panel_descriptor(shared_address(panels.k + square * 64 * kPanelRowBytes));
  const std::uint64_t v = panel_descriptor(shared_address(panels.v + square * 64 * kPanelRowBytes));
  const std::uint64_t q = panel_descriptor(shared_address(panels.q));
  const std::uint64_t dout = panel_descriptor(shared_address(panels.dout));
  settle_sums(dk), settle_sums(dv);
  for (int j = 0; j * 64 < rows; ++j) {
    Accumulator s, x;
    warpgroup_begin();
    multiply_squares(s, k, q + j * 4 * kNextRows);
    multiply_squares(x, v, dout + j * 4 * kNextRows);
    warpgroup_commit();
    warpgroup_wait<0>();
    const bool whole = whole_square(table, j);
    std::uint32_t to_keys[4][4], to_values[4][4];
    float d_mix[4] = {};
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const float m = table.mix[4 * j + step][last];
      const float2* weights = table.weights + (4 * j + step) * 16;
      if (!whole) {
        const int count = table.counts[4 * j + step];
        each_of_step(step, [&](int tile, int i, int column) {
          s[tile][i] = column < count ? s[tile][i] : 0.0f, x[tile][i] = column < count ? x[tile][i] : 0.0f;
        });
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {  // w and c of two neighbours
        const float4 wc = *reinterpret_cast<const float4*>(weights + tile * 8 + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float &y = x[2 * step + tile][i], &score = s[2 * step + tile][i];
          const float w = i % 2 ? wc.z : wc.x, c = i % 2 ? wc.w : wc.y;
          const float r = w * (y + c);
          d_mix[step] = fmaf(score, r, d_mix[step]);
          y = m * r, score *= m * w;
        }
      }
    }
    square_fragments(x, to_keys), square_fragments(s, to_values);
    warpgroup_begin();
    multiply_square_rows(dk, to_keys, q + j * 4 * kNextRows);
    multiply_square_rows(dv, to_values, dout + j * 4 * kNextRows);
    warpgroup_commit();
    if (maybe_parts != nullptr) {
      const float sum = four_sums(d_mix);
      if (lane < 4 && 4 * j + lane < tiles && own < tiles) maybe_parts[(4 * j + lane) * tiles + own] = sum;
    }
    warpgroup_wait<0>();
    settle_sums(dk), settle_sums(dv);
  }
}

// dq, dk, dv and parts of dmix [B H][tiles][tiles]. With several query heads the sums of a square of keys wait for all
// of them, so squares take turns, and the queries' side is done again in every turn.
template <class S>
__global__ void __launch_bounds__(kPairThreads, 1) short_gradient_kernel(Arguments p, Gradients g, PairShape shape) {
  after_previous();
  extern __shared__ char unaligned[];
  const int squares = panel_rows(shape.tiles) / 64, group = warpgroup_index();
  char* shared = aligned_panels(unaligned);
  const ShortPanels panels(shared);
  auto& sums = *reinterpret_cast<ShortSums*>(shared + 4 * ShortPanels::kBytes);
  PairHead work(p, shape, reinterpret_cast<char*>(&sums.table));
  work.enter(static_cast<int>(blockIdx.x));
  const int D = S::D(p), E = S::E(p), turns = p.group == 1 ? 1 : (squares + kShortGroups - 1) / kShortGroups;
  work.fill_tokens();
  for (int turn = 0; turn < turns; ++turn) {
    Accumulator dk = {}, dv = {};
    for (int h = 0; h < p.group; ++h) {
      const int head = work.head * p.group + h;
      if (turn + h > 0) __syncthreads();  // all are done with the head before
      const PanelMover<kPairThreads, kMaxPairTiles * 16> mover(sums.table);
      mover.copy(g.dout.at(work.batch, head), g.dout.token, E, panels.dout);
      mover.copy(p.q.at(work.batch, head), p.q.token, D, panels.q);
      if (turn + h == 0) {
        mover.copy(p.k.at(work.batch, work.head), p.k.token, D, panels.k);
        mover.copy(p.v.at(work.batch, work.head), p.v.token, E, panels.v);
        work.fill_mix(work.head);
      }
      copy_commit();
      copy_wait<0>();
      mover.map(S::map(p), D, panels.q);
      if (turn + h == 0) mover.map(S::map(p), D, panels.k);
      publish_shared();
      __syncthreads();
      if (turn + h == 0) mix_key_sums(panels.k, shape.tiles, sums);
      for (int square = group; square < squares; square += kShortGroups) {
        short_queries<S>(p, g, work, head, panels, sums, square, turn == 0);
      }
      __syncthreads();  // w and c are there
      const std::int64_t row = static_cast<std::int64_t>(work.batch) * p.Hkv * p.group + head;
      float* maybe_parts = g.dmix == nullptr ? nullptr : g.parts + row * shape.tiles * shape.tiles;
      for (int square = group + turn * kShortGroups; square < squares; square += kShortGroups) {
        short_keys(work, panels, sums.table, square, maybe_parts, dk, dv);
        if (h + 1 == p.group) {
          const int tile = square * 4 + threadIdx.x / 32 % 4;
          const float one[2] = {1.0f, 1.0f};
          char* out = reinterpret_cast<char*>(sums.out[threadIdx.x / 32]);
          if (g.dk.data != nullptr) {
            write_square_rows<true>(dk, one, sums.table, tile, out, g.dk.at(work.batch, work.head), g.dk.token, D,
                                    S::map(p), p.k.at(work.batch, work.head), p.k.token);
          }
          if (g.dv.data != nullptr) {
            write_square_rows<false>(dv, one, sums.table, tile, out, g.dv.at(work.batch, work.head), g.dv.token, E);
          }
        }
        if (turns > 1 || square + kShortGroups >= squares) break;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) dk[j][i] = dv[j][i] = 0;
        }
      }
    }
  }
}

}  // namespace mhla::sm90
