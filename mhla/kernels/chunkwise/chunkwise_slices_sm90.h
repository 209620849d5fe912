// The causal form of short chunks on Hopper, over slices of the columns of v (chunkwise_sm90_slices_plan.h).
#pragma once

#include "mhla/core/workspace.h"
#include "mhla/kernels/chunkwise/chunkwise_sm90_slices_plan.h"
#include "mhla/kernels/common/problem.h"

namespace mhla::sm90 {

// A forward problem over_slices(). Views that boxes do not take are copied before and after.
void forward_slices(const Problem& problem, Workspace& workspace);

}  // namespace mhla::sm90
