// What both passes of the causal form in plain CUDA begin with. Only they include this.
#pragma once

#include "mhla/kernels/common/cuda/plan.h"

namespace mhla::cuda {

// Summaries S of kv heads and prefixes P of query heads, with z and p where there is a normaliser (eq. 1, 2).
void chunk_prefixes(const Problem& p, const Call& call, const Wave& wave, float* S, float* prefixes);

}  // namespace mhla::cuda
