// dP and mixing of the causal backward pass on Hopper (chunkwise_sm90.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_mixing.cuh"
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_panels.cuh"
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_squares.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"

namespace mhla::sm90 {

void launch_panel_prefix_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  with_panel_spec<true>(a, [&](auto spec) {
    using T = PrefixGradientTiles<decltype(spec)>;
    const auto kernel = panel_prefix_gradient_kernel<decltype(spec)>;
    const unsigned blocks = blocks_for(kernel, T::kThreads, T::kBytes, std::int64_t{a.units} * a.M);
    launch_next("sm90 panel_prefix_gradient_kernel", kernel, blocks, T::kThreads, T::kBytes, stream, a, g);
  });
}

void launch_mix_both(const Arguments& a, const Gradients& g, const uint4* back_mix, std::int64_t splits,
                     std::int64_t matrices, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(matrices));
  const int X = a.D * a.E + a.D, rows = product_rows(a.M);
  if (a.mix_rows <= kMostMixedAtOnce) {
    const auto kernel = g.dmix != nullptr ? panel_mix_both_kernel<true> : panel_mix_both_kernel<false>;
    return launch_next("sm90 panel_mix_both_kernel", kernel, grid, MixBothPlan::kThreads, MixBothPlan{}.bytes(), stream,
                       a, g, X, rows);
  }
  const auto kernel = g.dmix != nullptr ? panel_mix_squares_kernel<true> : panel_mix_squares_kernel<false>;
  launch_next("sm90 panel_mix_squares_kernel", kernel, grid, MixSquaresPlan::kThreads, MixSquaresPlan{}.bytes(), stream,
              a, g, back_mix, X, rows);
}

}  // namespace mhla::sm90
