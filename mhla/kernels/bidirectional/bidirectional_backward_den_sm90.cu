// dq and dS~ of the bidirectional form on Hopper where q_den and k_den make the denominators (bidirectional_sm90.cuh).
#include "mhla/kernels/bidirectional/bidirectional_backward_sm90_panels.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"

namespace mhla::sm90 {

void launch_panel_den_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream) {
  with_den_spec(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4 || S::kRows == 8) launch_panel_query_gradient<S, true>(a, g, stream);
  });
}

}  // namespace mhla::sm90
