// dk of the causal form, and the diagonal of dmix (chunkwise_backward_sm80.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm80.cuh"

namespace mhla::sm80 {
namespace {

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
  const BlockTokens block = u.block(p, at.index);
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
  const float m = p.diagonal(u.head * p.group, at.index);
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
  multiply_parts<S>(p, acc[0], mine, p.mixed, at.row, at.index, stream, [&](int part) {
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

}  // namespace

void launch_causal_key_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                cudaStream_t stream) {
  with_chunk_spec<true>(a, [&](auto spec) {
    using S = decltype(spec);
    launch_tiles("causal_key_gradient_kernel", causal_key_gradient_kernel<S>, heads,
                 a.parts * kChunkTileBytes<S> + chunk_stream_bytes<S>(a.D) + kPhaseTokens * 8, a, g, tiles, stream);
  });
}

}  // namespace mhla::sm80
