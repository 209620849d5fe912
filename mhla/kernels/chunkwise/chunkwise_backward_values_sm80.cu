// dv of the causal form (chunkwise_backward_sm80.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm80.cuh"

namespace mhla::sm80 {
namespace {

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
  const BlockTokens block = u.block(p, at.index);
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
    const float m = p.diagonal(head, at.index);
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

}  // namespace

void launch_causal_value_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                  cudaStream_t stream) {
  with_chunk_spec<true>(a, [&](auto spec) {
    using S = decltype(spec);
    launch_tiles("causal_value_gradient_kernel", causal_value_gradient_kernel<S>, heads * a.parts,
                 kChunkTileBytes<S> + chunk_stream_bytes<S>(a.D) + kPhaseTokens * 8, a, g, tiles, stream);
  });
}

}  // namespace mhla::sm80
