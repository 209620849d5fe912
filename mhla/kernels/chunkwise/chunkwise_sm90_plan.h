// Plans of the causal Hopper forward, as pure functions of the shape.
#pragma once

#include <string>

#include "mhla/kernels/common/cuda/sm90_plan.h"

namespace mhla {
struct Problem;
}

namespace mhla::sm90 {

// Parts of the columns of v, each the work of a unit: at most 128 columns, as equal as multiples of 8 allow. 0: no such
// parts.
constexpr std::int64_t column_parts(std::int64_t E) {
  for (std::int64_t parts = (E + 127) / 128; parts <= E / 8; ++parts) {
    if (E % (8 * parts) == 0) return parts;
  }
  return 0;
}

// Why the Hopper kernels do not take a problem in the memory of a Hopper card, or empty.
std::string fit_causal_problem(const Problem& problem);

}  // namespace mhla::sm90
