// dk and dv of the causal form on Hopper (chunkwise_sm90.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_keys.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"

namespace mhla::sm90 {

void launch_panel_key_value_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                     cudaStream_t stream) {
  with_panel_spec<true>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 8) {
      if (a.parts == 2) return launch_key_value_tiles<S, 2>(a, g, heads, tiles, stream);
    }
    launch_key_value_tiles<S, 1>(a, g, heads, tiles, stream);
  });
}

}  // namespace mhla::sm90
