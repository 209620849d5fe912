// dq of the causal form with the normaliser (chunkwise_backward_sm80_queries.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm80_queries.cuh"

namespace mhla::sm80 {

void launch_normalized_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                      cudaStream_t stream) {
  launch_query_gradient<true>(a, g, heads, tiles, stream);
}

}  // namespace mhla::sm80
