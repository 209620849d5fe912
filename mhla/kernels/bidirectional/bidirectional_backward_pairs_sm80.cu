// Backward of the bidirectional form over all pairs of tokens: queries and keys in turn
// (bidirectional_backward_sm80_pairs.cuh), or on warpgroups of Hopper where on_warpgroups() says so.
#include "mhla/kernels/bidirectional/bidirectional_backward_sm80_pairs.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm80 {

void launch_pair_gradients(const Problem& p, const Arguments& a, const Gradients& g, cudaStream_t stream) {
  const PairShape queries = pair_shape(p, p.H), keys = pair_shape(p, p.Hkv);
  const Tiles t = tiles_of(a.D, a.E);
  if (a.hopper && on_warpgroups(p.M, p.C, t)) {
    sm90::launch_short_gradients(p, a, g, stream);
  } else {
    const int bytes = pair_shared_bytes(queries.tiles, t);
    with_spec<false>(a, [&](auto spec) {
      using S = decltype(spec);
      launch_next("query_pair_kernel", query_pair_kernel<S>, static_cast<unsigned>(p.B * p.H), kPairThreads, bytes,
                  stream, a, g, queries);
      if (p.dk.given() || p.dv.given()) {
        launch_next("key_pair_kernel", key_pair_kernel<S>, static_cast<unsigned>(p.B * p.Hkv), kPairThreads, bytes,
                    stream, a, g, keys);
      }
    });
  }
  if (p.dmix.given()) {
    launch_next("pair_mix_kernel", pair_mix_kernel<0>, mix_sum_grid<>(p.L, p.Hm), kMixSumThreads, 0, stream, a, g,
                static_cast<int>(p.B), queries);
  }
}

}  // namespace mhla::sm80
