// No time without a check: what `bench op` asks of a candidate before its number is printed.
#pragma once

#include <string>

#include "apps/bench/problem.h"

namespace mhla::apps {

// The accuracy rule of docs/numerics.md, forward and backward, on the same blocks and head sizes with one head and as
// many blocks as a second of reference code takes. Empty, or what went wrong.
std::string verify_reduced(const OpShape& shape, DType dtype, const std::string& backend);

// The timed call itself: a few value columns of out (or dv) of the first sequence and head against f64, at full size.
std::string verify_timed(const OpShape& shape, Pass pass, OpTensors& tensors);

}  // namespace mhla::apps
