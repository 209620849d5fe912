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
void launch_panel_prefix_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream);

}  // namespace mhla::sm90
