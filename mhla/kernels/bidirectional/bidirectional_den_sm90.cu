// Phase 3 on Hopper where q_den and k_den make the denominators (bidirectional_sm90.cuh).
#include "mhla/kernels/bidirectional/bidirectional_sm80.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90.cuh"
#include "mhla/kernels/bidirectional/bidirectional_sm90_readout.cuh"

namespace mhla::sm90 {

void launch_panel_den_readout(const Arguments& a, cudaStream_t stream) {
  with_den_spec(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 4 || S::kRows == 8) launch_panel_readout<S, true>(a, stream);
  });
}

}  // namespace mhla::sm90
