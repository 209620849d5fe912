// The token view of the operator, in f64 and O(N^2): A[t, s] = mix[b(t), b(s)] (q~_t . k~_s), s <= t in the
// causal form, out_t = scale * sum_s A[t, s] v_s / den_t. It knows blocks only as a number per token and
// shares no code with the kernels, so it can judge the reference.
#pragma once

#include "mhla/testing/cases.h"

namespace mhla {

// `inputs` in f64, contiguous (CaseInputs::to). Returns out [B, N, H, E].
Tensor token_view(const Case& c, const CaseInputs& inputs);

}  // namespace mhla
