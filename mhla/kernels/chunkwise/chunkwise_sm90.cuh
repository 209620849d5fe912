// What Hopper adds to the causal form where on_panels() holds: launches of its own kernels, for the passes in
// chunkwise_sm80.cu and chunkwise_backward_sm80.cu.
#pragma once

#include "mhla/kernels/common/cuda/sm80_tiles.cuh"

namespace mhla::sm80 {
struct Gradients;
}

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

// Summaries where takes_summary_ring(), and the output. Units are those of whole heads, all parts of their columns.
void launch_chunk_summaries(const Arguments& a, const Problem& problem, cudaStream_t stream);
void launch_causal_outputs(const Arguments& a, const Problem& problem, cudaStream_t stream);
// dP without a normaliser, in a.mixed: where takes_summary_ring().
void launch_chunk_prefix_gradients(const Arguments& a, const Problem& problem, cudaStream_t stream);
void launch_panel_prefix_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream);

// P in place of S unless forward kept it, dS in place of dP and dmix in `splits` parts for each matrix, where
// mixes_both_at_once() holds. back_mix: as a.packed_mix, transposed; both only where mixed_on_panels().
void launch_mix_both(const Arguments& a, const Gradients& g, const uint4* back_mix, std::int64_t splits,
                     std::int64_t matrices, cudaStream_t stream);

// dk and dv, and dq with w and c of tokens: where gradients_on_panels() holds (chunkwise_backward_sm90_plan.h). `tiles`
// of 64 tokens a chunk, heads of this round.
void launch_panel_key_value_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                     cudaStream_t stream);
void launch_panel_normalized_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                            cudaStream_t stream);
void launch_panel_free_query_gradient(const Arguments& a, const Gradients& g, std::int64_t heads, int tiles,
                                      cudaStream_t stream);

}  // namespace mhla::sm90
