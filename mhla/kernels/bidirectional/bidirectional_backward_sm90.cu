// Hopper's own kernels of the bidirectional backward pass through summaries (bidirectional_sm90.cuh).
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_panels.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm90 {

void launch_panel_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  with_panel_spec<false>(a, [&](auto spec) { launch_panel_query_gradient<decltype(spec)>(a, g, stream); });
}

void launch_panel_key_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  with_panel_spec<false>(a, [&](auto spec) {
    using T = KeyGradientTiles<decltype(spec)>;
    launch_persistent(panel_key_gradient_kernel<decltype(spec)>, T::kThreads, T::kBytes, a, stream,
                      "sm90 panel_key_gradient_kernel", g);
  });
}

}  // namespace mhla::sm90
