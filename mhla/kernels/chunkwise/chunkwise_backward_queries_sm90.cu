// dq of the causal form without a normaliser on Hopper (chunkwise_sm90.cuh).
#include "mhla/kernels/chunkwise/chunkwise_backward_sm90_queries.cuh"
#include "mhla/kernels/chunkwise/chunkwise_sm90.cuh"

namespace mhla::sm90 {
namespace {

template <class S, int kParts>
void launch_readers(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles, cudaStream_t stream) {
  tiles > 1 ? launch_free_query_tiles<S, kParts, 2>(a, g, heads, tiles, stream)
            : launch_free_query_tiles<S, kParts, 1>(a, g, heads, tiles, stream);
}

}  // namespace

void launch_panel_free_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                      cudaStream_t stream) {
  with_panel_spec<true>(a, [&](auto spec) {
    using S = decltype(spec);
    if constexpr (S::kRows == 8) {
      if (a.parts == 2) return launch_readers<S, 2>(a, g, heads, tiles, stream);
    }
    launch_readers<S, 1>(a, g, heads, tiles, stream);
  });
}

}  // namespace mhla::sm90
