// What the bidirectional form on Hopper launches from files of its own, so that each compiles within a minute.
#pragma once

#include "mhla/kernels/bidirectional/bidirectional_sm90_plan.h"
#include "mhla/kernels/common/cuda/sm90_phases.cuh"

namespace mhla::sm90 {

struct Gradients;

// Forward where plan.stages > 0: all of a.units, from beginning to end.
void launch_fused(const Arguments& a, const FusedPlan& plan, cudaStream_t stream);

// Backward of short sequences (over_pairs()): g.weights and g.parts as bidirectional_backward_sm90.cu takes them.
void launch_pair_gradients(const Problem& p, const Arguments& a, const Gradients& g, cudaStream_t stream);

}  // namespace mhla::sm90
