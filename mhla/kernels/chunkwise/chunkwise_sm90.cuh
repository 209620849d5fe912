// What Hopper adds to the causal form where on_panels() holds: launches of its own kernels, for the passes in
// chunkwise_sm80.cu and chunkwise_backward_sm80.cu.
#pragma once

#include "mhla/kernels/common/cuda/sm80_tiles.cuh"

namespace mhla::sm80 {
struct Gradients;
}

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

void launch_panel_causal(const Arguments& a, cudaStream_t stream);  // the output
void launch_panel_prefix_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream);

}  // namespace mhla::sm90
