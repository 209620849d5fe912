// Plain code: the formula step by step in the dtype of the inputs, each intermediate rounded to it, as
// eager PyTorch would run it, forward and autograd-like backward. Matrix products accumulate in f32 and
// round once (f64 for f64). Its distance from f64 is the yardstick of the accuracy rule.
#pragma once

#include "mhla/testing/run_case.h"

namespace mhla {

CaseResult plain_case(const Case& c, const CaseInputs& inputs);

}  // namespace mhla
