// Backward of the bidirectional form over all pairs of tokens by warpgroups: heads one after the other, or where query
// heads share keys a group of them at a time.
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_heads.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm90 {

void launch_short_gradients(const Problem& p, const Arguments& a, const Gradients& g, cudaStream_t stream) {
  with_spec<false>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4) {  // as on_warpgroups() says
      const PairShape shape = pair_shape(p, p.Hkv);
      const std::int64_t heads = p.B * p.Hkv;
      if (a.group == 1) {
        constexpr int bytes = head_shared_bytes(), threads = kHeadThreads;
        const auto kernel = head_gradient_kernel<S>;
        launch_next("sm90 head_gradient_kernel", kernel, blocks_for(kernel, threads, bytes, heads), threads, bytes,
                    stream, a, g, shape, static_cast<int>(heads));
      } else {
        launch_next("sm90 short_gradient_kernel", short_gradient_kernel<S>, static_cast<unsigned>(heads), kPairThreads,
                    short_backward_shared_bytes(), stream, a, g, shape);
      }
    }
  });
}

}  // namespace mhla::sm90
