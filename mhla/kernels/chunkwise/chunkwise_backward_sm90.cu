// Hopper's own kernel of the causal backward pass (chunkwise_sm90.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_panels.cuh"
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

}  // namespace mhla::sm90
