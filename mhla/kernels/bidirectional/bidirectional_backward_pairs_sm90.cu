// Backward of the bidirectional form over all pairs of tokens by one warpgroup (bidirectional_backward_sm90_short.cuh).
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_short.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm90 {

void launch_short_gradients(const Problem& p, const Arguments& a, const Gradients& g, cudaStream_t stream) {
  with_spec<false>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4) {  // as on_warpgroups() says
      constexpr int bytes = short_backward_shared_bytes();
      launch_next("sm90 short_gradient_kernel", short_gradient_kernel<S>, static_cast<unsigned>(p.B * p.Hkv),
                  kPairThreads, bytes, stream, a, g, pair_shape(p, p.Hkv));
    }
  });
}

}  // namespace mhla::sm90
