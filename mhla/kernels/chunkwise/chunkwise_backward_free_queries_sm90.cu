// dq of the causal form without a normaliser on Hopper (chunkwise_sm90.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_queries.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"

namespace mhla::sm90 {

void launch_panel_free_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                      cudaStream_t stream) {
  launch_queries_on_panels<false>(a, g, heads, tiles, stream);
}

}  // namespace mhla::sm90
