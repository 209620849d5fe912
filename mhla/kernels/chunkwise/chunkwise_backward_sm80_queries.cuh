// dq of the causal form, and the weights w and c of every token (chunkwise_backward_sm80.cuh). Compiled once
// with the normaliser and once without, in two files: this kernel takes half of the time of the whole pass to compile.
#pragma once

#include "mhla/kernels/chunkwise/chunkwise_backward_sm80.cuh"

namespace mhla::sm80 {

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
  const BlockTokens block = u.block(p, at.index);
  const int size = static_cast<int>(block.size), first = at.tile * kPhaseTokens;
  if (first >= size) return;
  const Bf16* dout = g.dout.at(u.batch, head) + block.origin * g.dout.token;
  const Bf16 *k = u.k(p) + block.origin * p.k.token, *v = u.v(p) + block.origin * p.v.token;
  const Bf16* q = p.q.at(u.batch, head) + block.origin * p.q.token;
  for (int part = 0; part < p.parts; ++part) {
    copy_tile<S>(dout + part * E, g.dout.token, first, size, E, own + part * kTile);
  }
  const char* mine = own + warp * 16 * S::kPitch;
  const float m = p.diagonal(head, at.index);
  float a[1][S::kColumns][4] = {}, b[1][kNormalized ? S::kColumns : 1][4] = {};
  if (at.index > 0) {
    multiply_parts<S>(p, a[0], mine, p.query_sums, local, at.index, stream, [&](int part) {
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

template <bool kNormalized>
void launch_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles, cudaStream_t stream) {
  with_chunk_spec<!kNormalized>(a, [&](auto spec) {
    using S = decltype(spec);
    launch_tiles("causal_query_gradient_kernel", causal_query_gradient_kernel<S, kNormalized>, heads * a.group,
                 a.parts * kChunkTileBytes<S> + chunk_stream_bytes<S>(a.D), a, g, tiles, stream);
  });
}

}  // namespace mhla::sm80
