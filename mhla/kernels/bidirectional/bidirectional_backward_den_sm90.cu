// dq and dS~ of the bidirectional form on Hopper where q_den and k_den make the denominators: those are in memory, and
// their gradients go there.
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_panels.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/common/cuda/sm80_backward.cuh"

namespace mhla::sm80 {

void launch_den_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  with_den_spec(a, [&](auto spec) { launch_query_gradient<decltype(spec), true>(a, g, stream); });
}

}  // namespace mhla::sm80
