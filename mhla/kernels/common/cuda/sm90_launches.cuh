// The phases that make and mix summaries on Hopper, where on_panels() and mixed_on_panels() say so: launches of
// summaries_sm90.cu, for summaries_sm80.cu. Of mix_gradient_sm90.cu: products for dmix.
#pragma once

#include "mhla/kernels/common/cuda/sm80_tiles.cuh"

namespace mhla::sm80 {
struct Gradients;
}

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

void launch_panel_summaries(const Arguments& a, cudaStream_t stream);
void launch_pack_panels(const Arguments& a, int mix_heads, bool back, cudaStream_t stream);
void launch_panel_mix(const Arguments& a, bool back, cudaStream_t stream);
// Parts of dmix, `splits` for each matrix, where mix_product_splits() says so. Given mix^T, dS too
// (mix_product_back()).
void launch_mix_product(const Arguments& a, const Gradients& g, const uint4* maybe_back_mix, std::int64_t splits,
                        std::int64_t matrices, cudaStream_t stream);

}  // namespace mhla::sm90
