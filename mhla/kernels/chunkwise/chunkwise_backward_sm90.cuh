// Backward of the causal form on Hopper, per tile of 64 tokens of a chunk i. With w = scale / den, c = -(num . dout) /
// den, m = mix[i,i], x = dout_t . v_s, r = w_t (x + c_t):
//   dq~_t = w_t (a_t + c_t b_t),  a_t = P_i dout_t + m sum_{s <= t} x k~_s,  b_t = zP_i + m sum_{s <= t} k~_s,
//           and den = eps + q~ b, num . dout = q~ a
//   dk~_s = dS_i v_s + dz_i + m sum_{t >= s} r q~_t,  dv_s = dS_i^T k~_s + m sum_{t >= s} w_t (q~_t k~_s) dout_t
//   dmix[i,i] = sum_{s <= t} (q~_t k~_s) r = sum_s k~_s (sum_{t >= s} r q~_t)
// Sums over E go part by part (chunkwise_sm90_plan.h).
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"
#include "mhla/kernels/common/cuda/sm90_backward.cuh"

namespace mhla::sm90 {

// Shared memory of a stream: a summary, or two tiles.
template <class S>
constexpr int chunk_stream_bytes(int D) {
  const int summary = summary_bytes(D, S::kTiles), tiles = 2 * kChunkTileBytes<S>;
  return summary > tiles ? summary : tiles;
}

__device__ inline float diagonal_of(const Arguments& p, int head, int index) {
  return p.mix[(p.mix_head ? head : 0) * p.mix_head + index * (p.mix_row + p.mix_column)];
}

// Waits for all copies of all threads; what was there before must not be read any more.
__device__ inline void all_there() {
  copy_commit();
  copy_wait<0>();
  __syncthreads();
}

// acc += a S^T over the columns of all parts, a: 16 rows of a tile in shared memory, a tile of it per part.
// at_part(part) is called while that part of the summary is there.
template <class S, class F>
__device__ inline void multiply_parts(const Arguments& p, float (&acc)[S::kColumns][4], const char* a, int local,
                                      int index, char* stream, const F& at_part) {
  const int lane = threadIdx.x % 32, X = S::D(p) * S::E(p) + S::D(p);
  for (int part = 0; part < p.parts; ++part) {
    if (part > 0) __syncthreads();
    copy_summary<S>(p, p.mixed + (static_cast<std::int64_t>(local * p.parts + part) * p.M + index) * X, stream);
    all_there();
    const std::uint32_t left = shared_address(a + part * kChunkTileBytes<S>) + lane % 16 * S::kPitch;
    multiply_by_rows<S>(
        p, acc,
        [&](int step, std::uint32_t(&x)[4]) {
          load_matrices(x, left + step * 32 + lane / 16 * second_half(step, S::E(p)));
        },
        stream, 0);
    at_part(part);
  }
}

// x[step] += a y^T over the columns of all parts for subtiles [begin, end) of 16 rows of y, whose first part is there:
// the others come through its place. a as in multiply_parts.
template <class S, class F>
__device__ inline void pair_parts(const Arguments& p, float (&x)[4][1][2][4], const char* a, char* y, int begin,
                                  int end, const F& copy_part) {
  for (int part = 0; part < p.parts; ++part) {
    if (part > 0) {
      __syncthreads();
      copy_part(part);
      all_there();
    }
    std::uint32_t left[1][S::kRows][4];
    load_tile<S>(left[0], a + part * kChunkTileBytes<S>, S::E(p));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step >= begin && step < end) multiply_pairs<S, 1>(x[step], left, y + step * 16 * S::kPitch, S::E(p));
    }
  }
}

// dq, and w and c of every token.
template <class S, bool kNormalized>
__global__ void __launch_bounds__(kChunkThreads, 2) causal_query_gradient_kernel(Arguments p, Gradients g, int tiles) {
  after_previous();
  constexpr int kTile = kChunkTileBytes<S>;
  extern __shared__ __align__(16) char shared[];  // dout [parts]; stream: P, or v and k
  char *own = shared, *stream = shared + p.parts * kTile, *keys = stream + kTile;
  const ChunkTile at(p, tiles);
  const int local = at.row / p.group, warp = threadIdx.x / 32, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  const Unit u(p, p.first_unit + local * p.parts);
  const int head = u.head * p.group + at.row % p.group;
  const BlockTokens block = p.block(at.index);
  const int size = static_cast<int>(block.size), first = at.tile * kPhaseTokens;
  if (first >= size) return;
  const Bf16* dout = g.dout.at(u.batch, head) + block.origin * g.dout.token;
  const Bf16 *k = u.k(p) + block.origin * p.k.token, *v = u.v(p) + block.origin * p.v.token;
  const Bf16* q = p.q.at(u.batch, head) + block.origin * p.q.token;
  for (int part = 0; part < p.parts; ++part) {
    copy_tile<S>(dout + part * E, g.dout.token, first, size, E, own + part * kTile);
  }
  const char* mine = own + warp * 16 * S::kPitch;
  const float m = diagonal_of(p, head, at.index);
  float a[1][S::kColumns][4] = {}, b[1][kNormalized ? S::kColumns : 1][4] = {};
  if (at.index > 0) {
    multiply_parts<S>(p, a[0], mine, local, at.index, stream, [&](int part) {
      if constexpr (kNormalized) {
        const auto* z = reinterpret_cast<const Bf16*>(stream + summary_row(D, S::kPitch)) + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < S::kColumns; ++j) {
          if (part > 0 || j * 8 >= D) break;
          const float2 zz = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(z + j * 8));
          b[0][j][0] = b[0][j][2] = zz.x, b[0][j][1] = b[0][j][3] = zz.y;
        }
      }
    });
  }
  for (int j = 0; j <= at.tile; ++j) {
    __syncthreads();
    const auto copy_part = [&](int part) { copy_tile<S>(v + part * E, p.v.token, j * kPhaseTokens, size, E, stream); };
    copy_part(0);
    copy_tile<S>(k, p.k.token, j * kPhaseTokens, size, D, keys);
    copy_commit();
    copy_wait<0>();
    map_tile<S>(p, keys);
    __syncthreads();
    const int steps = j < at.tile ? 4 : warp + 1;  // on the diagonal: keys up to this warp's queries
    float x[4][1][2][4] = {};
    pair_parts<S>(p, x, mine, stream, 0, steps, copy_part);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step >= steps) break;
      const bool last = j == at.tile && step == warp;
      const auto used = [&](int t, int s) { return !last || s <= t; };
      std::uint32_t left[4];
      each_pair([&](int tile, int i, int column) {
        x[step][0][tile][i] = used(lane / 4 + i / 2 * 8, column) ? m * x[step][0][tile][i] : 0.0f;
      });
      pair_fragment(x[step][0], left);
      const char* rows = keys + step * 16 * S::kPitch;
      multiply_used_or_all<S::kColumns>(last, a[0], left, rows, S::kPitch, D, used);
      if constexpr (kNormalized) {
        each_pair(
            [&](int tile, int i, int column) { x[step][0][tile][i] = used(lane / 4 + i / 2 * 8, column) ? m : 0.0f; });
        pair_fragment(x[step][0], left);
        multiply_used_or_all<S::kColumns>(last, b[0], left, rows, S::kPitch, D, used);
      }
    }
  }
  const int place = first + warp * 16 + lane / 4;
  float w[2] = {p.scale, p.scale}, c[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool valid = place + half * 8 < size;
    const Bf16* row = q + (valid ? place + half * 8 : 0) * p.q.token + lane % 4 * 2;
    if constexpr (kNormalized) {
      float den = 0, dot = 0;
#pragma unroll
      for (int j = 0; j < S::kColumns; ++j) {
        if (j * 8 >= D) break;
        const float2 x = unpack_bf16(feature_pair(S::map(p), *reinterpret_cast<const std::uint32_t*>(row + j * 8)));
        den = fmaf(x.x, b[0][j][2 * half], fmaf(x.y, b[0][j][2 * half + 1], den));
        dot = fmaf(x.x, a[0][j][2 * half], fmaf(x.y, a[0][j][2 * half + 1], dot));
      }
      const float total = p.eps + quad_sum(den), sum = quad_sum(dot);
      w[half] = p.scale / total, c[half] = -sum / total;
#pragma unroll
      for (int j = 0; j < S::kColumns; ++j) {
        a[0][j][2 * half] = fmaf(c[half], b[0][j][2 * half], a[0][j][2 * half]);
        a[0][j][2 * half + 1] = fmaf(c[half], b[0][j][2 * half + 1], a[0][j][2 * half + 1]);
      }
    }
    if (valid && lane % 4 == 0) {
      g.weights[(static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + block.origin + place + half * 8] =
          {w[half], c[half]};
    }
  }
  if (g.dq.data == nullptr || first + warp * 16 >= size) return;
  Bf16* dq = g.dq.at(u.batch, head) + block.origin * g.dq.token;
  const int upper = min(place, size - 1), lower = min(place + 8, size - 1);
  write_row<0, true>(a[0], w[0], place < size, dq + upper * g.dq.token, D, S::map(p), q + upper * p.q.token);
  write_row<1, true>(a[0], w[1], place + 8 < size, dq + lower * g.dq.token, D, S::map(p), q + lower * p.q.token);
}

// dP_i = sum_t (w q~_t)^T [dout_t c_t], in place of P_i: a block of threads per chunk and part.
template <class S>
__global__ void __launch_bounds__(S::kRows * 32, S::kRows >= 8 ? 2 : 4)
    prefix_gradient_kernel(Arguments p, Gradients g) {
  after_previous();
  constexpr int kStage = 2 * kChunkTileBytes<S> + kPhaseTokens * 8;
  extern __shared__ __align__(16) char shared[];  // [2] q, dout, weights
  const int unit = blockIdx.x / p.M, index = blockIdx.x % p.M, row = threadIdx.x / 32 * 16, D = S::D(p), E = S::E(p);
  const Unit u(p, p.first_unit + unit);
  const BlockTokens block = p.block(index);
  const int size = static_cast<int>(block.size), tiles = (size + kPhaseTokens - 1) / kPhaseTokens;
  const auto fetch = [&](int at) {  // tiles of one query head of the group after the other
    if (at < tiles * p.group) {
      const int head = u.head * p.group + at / tiles, first = at % tiles * kPhaseTokens;
      char* to = shared + at % 2 * kStage;
      copy_pair_rows<S, kPhaseTokens>(p, p.q.at(u.batch, head), p.q.token, g.dout.at(u.batch, head) + u.part * E,
                                      g.dout.token, block, first, to);
      const float2* weights =
          g.weights + (static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + block.origin + first;
      for (int t = threadIdx.x; t < kPhaseTokens; t += blockDim.x) {
        const bool valid = first + t < size;
        copy8(shared_address(to + 2 * kChunkTileBytes<S> + t * 8), valid ? weights + t : weights, valid);
      }
    }
    copy_commit();
  };
  SummaryGradient<S, S::kColumns> gradient;
  fetch(0);
  for (int at = 0; at < tiles * p.group; ++at) {
    fetch(at + 1);
    copy_wait<1>();
    __syncthreads();
    const char *q = shared + at % 2 * kStage, *dout = q + kChunkTileBytes<S>;
    const auto* weights = reinterpret_cast<const float2*>(q + 2 * kChunkTileBytes<S>);
    for (int step = 0; step < 4 && at % tiles * kPhaseTokens + step * 16 < size; ++step) {
      gradient.add(p, q + step * 16 * S::kPitch, dout + step * 16 * S::kPitch, weights + step * 16, row, 0);
    }
    __syncthreads();
  }
  if (u.part > 0) gradient.z[0] = gradient.z[2] = 0;  // the denominator's gradient counts once
  gradient.write(p, shared, p.mixed + static_cast<std::int64_t>(blockIdx.x) * (D * E + D), row, 0);
}

// w and c of 64 tokens to shared memory, zeros behind the end of the chunk.
__device__ inline void copy_weights(const float2* from, int first, int size, float2* to) {
  const int t = threadIdx.x;
  if (t < kPhaseTokens) copy8(shared_address(to + t), first + t < size ? from + first + t : from, first + t < size);
}

// dk, and dmix[i,i] in parts.
template <class S>
__global__ void __launch_bounds__(kChunkThreads, S::kRows >= 8 ? 3 : 4)
    causal_key_gradient_kernel(Arguments p, Gradients g, int tiles) {
  after_previous();
  constexpr int kTile = kChunkTileBytes<S>;
  extern __shared__ __align__(16) char shared[];  // v [parts]; stream: dS, or dout and q; weights
  char *own = shared, *stream = own + p.parts * kTile, *queries = stream + kTile;
  auto* weights = reinterpret_cast<float2*>(stream + chunk_stream_bytes<S>(S::D(p)));
  const ChunkTile at(p, tiles);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  const Unit u(p, p.first_unit + at.row * p.parts);
  const BlockTokens block = p.block(at.index);
  const int size = static_cast<int>(block.size), first = at.tile * kPhaseTokens;
  float* to = g.maybe_diagonal +
              (static_cast<std::int64_t>(p.first_unit / p.parts + at.row) * p.M + at.index) * g.diagonals + at.tile;
  if (first >= size) {
    if (g.dmix != nullptr && threadIdx.x == 0) *to = 0;
    return;
  }
  const Bf16 *k = u.k(p) + block.origin * p.k.token, *v = u.v(p) + block.origin * p.v.token;
  for (int part = 0; part < p.parts; ++part) {
    copy_tile<S>(v + part * E, p.v.token, first, size, E, own + part * kTile);
  }
  const char* mine = own + warp * 16 * S::kPitch;
  float acc[1][S::kColumns][4] = {};
  for (int h = 0; h < p.group; ++h) {  // the heads of a group share mix
    const int head = u.head * p.group + h;
    const Bf16* q = p.q.at(u.batch, head) + block.origin * p.q.token;
    const Bf16* dout = g.dout.at(u.batch, head) + block.origin * g.dout.token;
    const float2* all_weights =
        g.weights + (static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + block.origin;
    for (int j = at.tile; j * kPhaseTokens < size; ++j) {
      __syncthreads();
      const auto copy_part = [&](int part) {
        copy_tile<S>(dout + part * E, g.dout.token, j * kPhaseTokens, size, E, stream);
      };
      copy_part(0);
      copy_tile<S>(q, p.q.token, j * kPhaseTokens, size, D, queries);
      copy_weights(all_weights, j * kPhaseTokens, size, weights);
      copy_commit();
      copy_wait<0>();
      map_tile<S>(p, queries);
      __syncthreads();
      const int begin = j > at.tile ? 0 : warp;  // on the diagonal: queries from this warp's keys on
      float x[4][1][2][4] = {};
      pair_parts<S>(p, x, mine, stream, begin, 4, copy_part);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (step < begin) continue;
        const bool diagonal = j == at.tile && step == warp;
        const auto used = [&](int s, int t) { return !diagonal || t >= s; };
        each_pair([&](int tile, int i, int column) {
          const float2 wc = weights[step * 16 + column];
          const bool here = used(lane / 4 + i / 2 * 8, column) && j * kPhaseTokens + step * 16 + column < size;
          x[step][0][tile][i] = here ? wc.x * (x[step][0][tile][i] + wc.y) : 0.0f;
        });
        std::uint32_t left[4];
        pair_fragment(x[step][0], left);
        multiply_used_or_all<S::kColumns>(diagonal, acc[0], left, queries + step * 16 * S::kPitch, S::kPitch, D, used);
      }
    }
  }
  const int place = first + warp * 16 + lane / 4, upper = min(place, size - 1), lower = min(place + 8, size - 1);
  const float m = diagonal_of(p, u.head * p.group, at.index);
  float d_mix = 0;
#pragma unroll
  for (int j = 0; j < S::kColumns; ++j) {
    if (j * 8 >= D) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Bf16* row = k + (half ? lower : upper) * p.k.token + j * 8 + lane % 4 * 2;
      const float2 x = unpack_bf16(feature_pair(S::map(p), *reinterpret_cast<const std::uint32_t*>(row)));
      float &low = acc[0][j][2 * half], &high = acc[0][j][2 * half + 1];
      if (place + half * 8 < size) d_mix = fmaf(x.x, low, fmaf(x.y, high, d_mix));
      low *= m, high *= m;
    }
  }
  __syncthreads();
  multiply_parts<S>(p, acc[0], mine, at.row, at.index, stream, [&](int part) {
    const auto* z = reinterpret_cast<const Bf16*>(stream + summary_row(D, S::kPitch)) + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < S::kColumns; ++j) {
      if (part > 0 || !p.normalized || j * 8 >= D) break;
      const float2 zz = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(z + j * 8));
      acc[0][j][0] += zz.x, acc[0][j][1] += zz.y, acc[0][j][2] += zz.x, acc[0][j][3] += zz.y;
    }
  });
  if (g.dk.data != nullptr) {
    Bf16* dk = g.dk.at(u.batch, u.head) + block.origin * g.dk.token;
    write_row<0, true>(acc[0], 1.0f, place < size, dk + upper * g.dk.token, D, S::map(p), k + upper * p.k.token);
    write_row<1, true>(acc[0], 1.0f, place + 8 < size, dk + lower * g.dk.token, D, S::map(p), k + lower * p.k.token);
  }
  if (g.dmix == nullptr) return;
  for (int away = 16; away > 0; away /= 2) d_mix += __shfl_down_sync(0xffffffffu, d_mix, away);
  auto* sums = reinterpret_cast<float*>(weights);
  if (lane == 0) sums[warp] = d_mix;
  __syncthreads();
  if (threadIdx.x == 0) *to = sums[0] + sums[1] + sums[2] + sums[3];
}

// dv of a part of its columns.
template <class S>
__global__ void __launch_bounds__(kChunkThreads, 3) causal_value_gradient_kernel(Arguments p, Gradients g, int tiles) {
  after_previous();
  constexpr int kTile = kChunkTileBytes<S>;
  extern __shared__ __align__(16) char shared[];  // k; stream: dS, or q and dout; weights
  char *own = shared, *stream = shared + kTile, *values = stream + kTile;
  auto* weights = reinterpret_cast<float2*>(stream + chunk_stream_bytes<S>(S::D(p)));
  const ChunkTile at(p, tiles);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, D = S::D(p), E = S::E(p);
  const Unit u(p, p.first_unit + at.row);
  const BlockTokens block = p.block(at.index);
  const int size = static_cast<int>(block.size), first = at.tile * kPhaseTokens;
  if (first >= size) return;
  copy_tile<S>(u.k(p) + block.origin * p.k.token, p.k.token, first, size, D, own);
  copy_summary<S>(p, p.mixed + (static_cast<std::int64_t>(at.row) * p.M + at.index) * (D * E + D), stream);
  copy_commit();
  copy_wait<0>();
  map_tile<S>(p, own);
  __syncthreads();
  std::uint32_t keys[1][S::kRows][4];
  load_tile<S>(keys[0], own + warp * 16 * S::kPitch, D);
  float acc[1][S::kColumns][4] = {};
#pragma unroll
  for (int step = 0; step < S::kRows; ++step) {
    if (step * 16 >= D) break;
    const int d = min(step * 16 + lane % 16, D - 1);
    multiply_rows<S::kColumns>(acc[0], keys[0][step], shared_address(stream) + summary_row(d, S::kPitch));
  }
  for (int h = 0; h < p.group; ++h) {
    const int head = u.head * p.group + h;
    const Bf16* q = p.q.at(u.batch, head) + block.origin * p.q.token;
    const Bf16* dout = g.dout.at(u.batch, head) + block.origin * g.dout.token + u.part * E;
    const float2* all_weights =
        g.weights + (static_cast<std::int64_t>(u.batch) * p.Hkv * p.group + head) * p.N + block.origin;
    const float m = diagonal_of(p, head, at.index);
    for (int j = at.tile; j * kPhaseTokens < size; ++j) {
      __syncthreads();
      copy_tile<S>(q, p.q.token, j * kPhaseTokens, size, D, stream);
      copy_tile<S>(dout, g.dout.token, j * kPhaseTokens, size, E, values);
      copy_weights(all_weights, j * kPhaseTokens, size, weights);
      copy_commit();
      copy_wait<0>();
      map_tile<S>(p, stream);
      __syncthreads();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (j == at.tile && step < warp) continue;
        const bool diagonal = j == at.tile && step == warp;
        const auto used = [&](int s, int t) { return !diagonal || t >= s; };
        float score[1][2][4] = {};
        multiply_pairs<S, 1>(score, keys, stream + step * 16 * S::kPitch, D);
        each_pair([&](int tile, int i, int column) {
          const float w = weights[step * 16 + column].x;
          const bool here = used(lane / 4 + i / 2 * 8, column) && j * kPhaseTokens + step * 16 + column < size;
          score[0][tile][i] = here ? m * w * score[0][tile][i] : 0.0f;
        });
        std::uint32_t left[4];
        pair_fragment(score[0], left);
        multiply_used_or_all<S::kColumns>(diagonal, acc[0], left, values + step * 16 * S::kPitch, S::kPitch, E, used);
      }
    }
  }
  const int place = first + warp * 16 + lane / 4, upper = min(place, size - 1), lower = min(place + 8, size - 1);
  Bf16* dv = g.dv.at(u.batch, u.head) + u.part * E + block.origin * g.dv.token;
  write_row<0, false>(acc[0], 1.0f, place < size, dv + upper * g.dv.token, E);
  write_row<1, false>(acc[0], 1.0f, place + 8 < size, dv + lower * g.dv.token, E);
}

}  // namespace mhla::sm90
