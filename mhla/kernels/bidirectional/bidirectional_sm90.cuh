// What Hopper adds to the bidirectional form: launches of its own kernels, for the passes in bidirectional_sm80.cu and
// bidirectional_backward_sm80.cu. `den`: with q_den and k_den, as bidirectional_sm80.cuh says.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm80_plan.h"
#include "mhla/kernels/bidirectional/bidirectional_sm90_fused_plan.h"
#include "mhla/kernels/common/cuda/sm80_tiles.cuh"

namespace mhla::sm80 {
struct Gradients;
}

namespace mhla::sm90 {

using namespace mhla::sm80;  // NOLINT(google-build-using-namespace): what these kernels add to

// Where on_warpgroups() holds: all of a problem. The second one gives the same bits where pairs_in_boxes() holds and
// q, k, v and out are such that boxes_take() them.
void launch_short(const Problem& p, const Arguments& a, cudaStream_t stream);
void launch_short_boxes(const Problem& p, const Arguments& a, cudaStream_t stream);
void launch_short_gradients(const Problem& p, const Arguments& a, const Gradients& g, cudaStream_t stream);

// Where box_plan() fits: forward, all of a.units, from beginning to end.
void launch_box_fused(const Problem& p, const Arguments& a, const BoxPlan& plan, cudaStream_t stream);
// Where box_gradient_plan() fits and all of dq, dk and dv are wanted: these. With a.summaries, plan.block_bytes for
// each of M blocks of box_gradient_blocks() heads, also parts of dmix: [units][16][16], or [heads][sequences][16][16]
// where heads have their own matrix.
int box_gradient_blocks(const Arguments& a, const BoxPlan& plan);
void launch_box_gradients(const Problem& p, const Arguments& a, float* maybe_parts, const BoxPlan& plan,
                          cudaStream_t stream);

// Where on_panels() holds: phase 3; dq and dS~; dk and dv.
void launch_panel_readout(const Arguments& a, cudaStream_t stream);
void launch_panel_den_readout(const Arguments& a, cudaStream_t stream);
void launch_panel_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream);
void launch_panel_den_query_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream);
void launch_panel_key_gradient(const Arguments& a, const Gradients& g, cudaStream_t stream);

}  // namespace mhla::sm90
