// Hopper's own kernel of the causal forward pass (chunkwise_sm90.cuh).
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90_panels.cuh"

namespace mhla::sm90 {

void launch_panel_causal(const Arguments& a, cudaStream_t stream) {
  with_panel_spec<true>(a, [&](auto spec) {
    using T = CausalTiles<decltype(spec)>;
    const auto kernel = panel_causal_kernel<decltype(spec)>;
    const unsigned blocks = blocks_for(kernel, T::kThreads, T::kBytes, std::int64_t{a.units} * a.group * a.M);
    launch_next("sm90 panel_causal_kernel", kernel, blocks, T::kThreads, T::kBytes, stream, a);
  });
}

}  // namespace mhla::sm90
