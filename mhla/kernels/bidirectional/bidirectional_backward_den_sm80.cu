// dq and dS~ of the bidirectional form where q_den and k_den make the denominators: those are in memory, and their
// gradients go there.
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
#include "mhla/kernels/common/cuda/sm80_backward.cuh"

namespace mhla::sm80 {

void launch_den_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  if (on_panels(a)) return sm90::launch_panel_den_query_gradient(a, g, stream);
  with_den_spec(a, [&](auto spec) { launch_query_gradient<decltype(spec), true>(a, g, stream); });
}

}  // namespace mhla::sm80
