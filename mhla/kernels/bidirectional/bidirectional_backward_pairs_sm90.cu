// Backward of the bidirectional form on Hopper over all pairs of tokens: by one warpgroup
// (bidirectional_backward_sm90_short.cuh), or queries and keys in turn (bidirectional_backward_sm80_pairs.cuh).
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_short.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"

namespace mhla::sm80 {

void launch_pair_gradients(const Problem& p, const Arguments& a, const Gradients& g, cudaStream_t stream) {
  const PairShape queries = pair_shape(p, p.H), keys = pair_shape(p, p.Hkv);
  const auto units = static_cast<unsigned>(p.B * p.Hkv);
  with_spec<false>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4) {  // as on_warpgroups() says
      constexpr int bytes = short_backward_shared_bytes();
      launch_next("sm90 short_gradient_kernel", short_gradient_kernel<S>, units, kPairThreads, bytes, stream, a, g,
                  keys);
    } else {
      const int bytes = pair_shared_bytes<S>(queries.tiles);
      launch_next("sm90 query_pair_kernel", query_pair_kernel<S>, static_cast<unsigned>(p.B * p.H), kPairThreads, bytes,
                  stream, a, g, queries);
      if (p.dk.given() || p.dv.given()) {
        launch_next("sm90 key_pair_kernel", key_pair_kernel<S>, units, kPairThreads, bytes, stream, a, g, keys);
      }
    }
  });
  if (p.dmix.given()) {
    launch_next("sm90 pair_mix_kernel", pair_mix_kernel<0>, mix_sum_grid(p.L, p.Hm), kMixSumThreads, 0, stream, a, g,
                static_cast<int>(p.B), queries);
  }
}

}  // namespace mhla::sm80
